"""How public checkpoints name the tensors of fedra's bodies.

A layout is recognized by a tensor that only it has. Blocks are numbered consecutively in the natural order of their
prefixes; then patterns are replaced one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

WRAPPERS = re.compile(r"^(?:module\.|backbone\.)+")
"""Prefixes of modules that only wrap the network, such as DataParallel."""


@dataclass(frozen=True)
class KeyMap:
    """The names of one public layout: `mark` identifies it, `blocks` is the pattern of a block's prefix."""

    layout: str
    mark: str
    blocks: str
    renames: tuple[tuple[str, str], ...]

    def names(self, theirs: Iterable[str]) -> dict[str, str]:
        """Return fedra's name for each of their names."""
        keys = list(theirs)
        found = {match[0] for match in (re.match(self.blocks, key) for key in keys) if match}
        numbers = {prefix: number for number, prefix in enumerate(sorted(found, key=_natural_key))}

        def numbered(match: re.Match[str]) -> str:
            return f"blocks.{numbers[match[0]]}."

        return {key: f"body.{rename_key(re.sub(f'^{self.blocks}', numbered, key), self.renames)}" for key in keys}


def rename_key(name: str, renames: Iterable[tuple[str, str]]) -> str:
    """Return `name` after all replacements, in order."""
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name)
    return name


def key_map_for(names: Iterable[str]) -> KeyMap | None:
    """Return the map of the layout with these names; None if it is not known."""
    known = set(names)
    return next((key_map for key_map in KEY_MAPS if key_map.mark in known), None)


def _natural_key(text: str) -> list[int | str]:
    """Return a sort key with block 2 before block 10; numbers inside a name, as in conv_23 and conv_3, are text."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(?<=\.)(\d+)(?=\.)", text)]


UNIT = ((r"\.bn\.", ".norm."), (r"\.prelu\.", ".activation."))
NUMBERED_UNIT = ((r"\.layers\.0\.", ".conv."), (r"\.layers\.1\.", ".norm."), (r"\.layers\.2\.", ".activation."))

KEY_MAPS = (
    KeyMap(
        "InsightFace's IResNet",
        "layer4.0.prelu.weight",
        r"layer\d\.\d+\.",
        (
            (r"^(blocks\.\d+\.)downsample\.", r"\1shortcut."),
            *(
                (rf"^(blocks\.\d+\.){name}\.", rf"\1residual.{index}.")
                for index, name in enumerate(("bn1", "conv1", "bn2", "prelu", "conv2", "bn3"))
            ),
            (r"^conv1\.", "stem.conv."),
            (r"^bn1\.", "stem.norm."),
            (r"^prelu\.", "stem.activation."),
            (r"^bn2\.", "norm."),
            (r"^fc\.", "embedding."),
        ),
    ),
    KeyMap(
        "InsightFace's MobileFaceNet",
        "conv_sep.layers.0.weight",
        r"layers\.\d+\.(?:layers\.\d+\.)?(?=layers\.\d\.layers\.)",
        (
            (r"^(blocks\.\d+)\.layers\.0\.", r"\1.expand."),
            (r"^(blocks\.\d+)\.layers\.1\.", r"\1.depthwise."),
            (r"^(blocks\.\d+)\.layers\.2\.", r"\1.project."),
            (r"^layers\.0\.", "stem."),
            (r"^layers\.1\.", "depthwise."),
            (r"^conv_sep\.", "widen."),
            (r"^features\.layers\.0\.", "global_depthwise."),
            (r"^features\.layers\.2\.", "embedding."),
            (r"^features\.layers\.3\.", "features."),
            *NUMBERED_UNIT,
        ),
    ),
    KeyMap(
        "face.evoLVe's and CurricularFace's MobileFaceNet",
        "conv_6_sep.conv.weight",
        r"conv_(?:23|34|45|\d\.model\.\d+)\.",
        (
            (r"^(blocks\.\d+)\.conv\.", r"\1.expand."),
            (r"^(blocks\.\d+)\.conv_dw\.", r"\1.depthwise."),
            (r"^conv1\.", "stem."),
            (r"^conv2_dw\.", "depthwise."),
            (r"^conv_6_sep\.", "widen."),
            (r"^output_layer\.", ""),
            (r"^conv_6_dw\.", "global_depthwise."),
            (r"^linear\.", "embedding."),
            (r"^bn\.", "features."),
            *UNIT,
        ),
    ),
    KeyMap(
        "Xiaoccer's MobileFaceNet",
        "linear7.conv.weight",
        r"blocks\.\d+\.",
        (
            *(
                (rf"^(blocks\.\d+)\.conv\.{index}\.", rf"\1.{name}.")
                for index, name in enumerate(
                    f"{part}.{layer}"
                    for part in ("expand", "depthwise", "project")
                    for layer in ("conv", "norm", "activation")
                )
            ),
            (r"^conv1\.", "stem."),
            (r"^dw_conv1\.", "depthwise."),
            (r"^conv2\.", "widen."),
            (r"^linear7\.", "global_depthwise."),
            (r"^linear1\.conv\.", "embedding."),
            (r"^linear1\.bn\.", "features."),
            *UNIT,
        ),
    ),
    KeyMap(
        "FedFR's SphereFace network",
        "layer4.2.prelu1.weight",
        r"(?!)",
        (
            (r"^layer", "stage"),
            *(
                (rf"\.{name}\.", f".residual.{index}.")
                for index, name in enumerate(("conv1", "prelu1", "conv2", "prelu2"))
            ),
            (r"^fc\.", "embedding."),
        ),
    ),
)
