"""The sections of a configuration that protect clients, or attack them: `[privacy]`, `[secure]` and `[attack]`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from fedra.config.section import Section


class PrivacySection(Section):
    """Differential privacy; see docs/privacy.md for what is protected, from whom, and what is not."""

    level: Literal["none", "client", "example"] = Field(
        "none",
        description="'client' hides all data of one client in the models of all rounds; 'example' hides one example, "
        "from the server too",
    )
    delta: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="probability with which the bound may fail; must be below 1 / number of clients, or below 1 / "
        "number of examples of the largest client",
    )
    epsilon: float | None = Field(
        None, gt=0, le=1e6, description="the budget: the run ends before the round that would exceed it"
    )
    noise: Annotated[float, Field(ge=0, le=1e6)] | Literal["auto"] = Field(
        "auto", description="noise over the clip norm; 'auto' computes it from epsilon, delta and rounds"
    )
    clip: Annotated[float, Field(gt=0, le=1e12)] | Literal["adaptive"] | None = Field(
        None,
        description="norm to which a whole upload, or the gradient of one example, is clipped; 'adaptive', the default "
        "for clients, follows a quantile of the norms; 1.0 is the default for examples",
    )
    quantile: float = Field(0.5, gt=0, lt=1, description="adaptive clip: share of clients that should not be clipped")
    clip_start: float = Field(0.1, gt=0, le=1e12, description="adaptive clip: the first norm")
    weights: Literal["uniform", "capped"] = Field(
        "uniform", description="'capped' weights a client by its number of examples, at most cap"
    )
    cap: int = Field(600, ge=1, le=10**9, description="largest number of examples that counts with weights = 'capped'")
    where: Literal["server", "clients"] = Field(
        "server",
        description="who adds the noise; 'clients' needs [secure], and then the server need not be trusted",
    )
    honest: float = Field(
        0.5,
        gt=0,
        le=1,
        description="where = 'clients': share of a round's clients whose noise suffices; the others may drop out, or "
        "add none",
    )
    amplification: Literal["auto", "none"] = Field(
        "auto",
        description="'auto' counts on sampled cohorts or batches, which needs cohort.sampling or local.sampling = "
        "'poisson'; 'none' counts every round for every client, or in rotation its turns, or every epoch for every "
        "example",
    )
    band: int = Field(
        1,
        ge=1,
        le=10**4,
        description="level 'client': noise is correlated over so many rounds, which cancels in their sum; needs "
        "cohort.sampling = 'rotation' with at least so many rounds from one turn of a client to its next; 1 is "
        "independent noise",
    )
    canaries: int = Field(
        0,
        ge=0,
        le=10**4,
        description="level 'client': known vectors that take part like clients and measure epsilon (docs/audit.md), 20 "
        "to a tenth of the square root of the number of weights; 0 for none",
    )
    counts: Literal["private", "public"] = Field(
        "private",
        description="level 'example': 'public' lets label counts of clients steer their losses (fedlc, fedrs)",
    )
    seed: Literal["secret", "run"] = Field(
        "secret", description="where noise comes from; 'run' derives it from seed, for research: no guarantee"
    )
    figures: Literal["covered", "all"] = Field(
        "covered",
        description="'covered' records only what the guarantee covers; 'all' also records training losses and clients",
    )

    @property
    def adapts_clip(self) -> bool:
        """Whether the clip norm follows the norms of the uploads."""
        return self.level != "example" and self.clip in (None, "adaptive")


class SecureSection(Section):
    """Secure aggregation: the server learns the sum over a round's clients and no single upload."""

    aggregation: Literal["none", "masks"] = Field("none", description="'masks' adds up masked uploads")
    threshold: float = Field(
        2 / 3, gt=0.5, lt=1, description="share of a client's neighbors that must stay to the end of a round"
    )
    neighbors: int = Field(
        0, ge=0, le=10**6, description="clients that each client shares masks with, an even number; 0 for all"
    )
    bound: float = Field(1.0, gt=0, le=1e12, description="largest absolute value of a number; larger ones are clipped")
    bits: int = Field(
        0,
        ge=0,
        le=30,
        description="most bits of a number's absolute value; 0 for as many as cannot overflow in the sum",
    )


class AttackSection(Section):
    """Simulated malicious clients, for research and tests; a real federation refuses it."""

    name: Literal["none", "sign-flip", "scaled", "noise", "label-flip", "backdoor", "alie", "min-max", "not-finite"] = (
        Field("none", description="what malicious clients send; see docs/robust.md")
    )
    share: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="share of all clients that is malicious, drawn by seed, at least one client; 0 is the control: no "
        "client attacks, and a backdoor's trigger is still tested",
    )
    scale: float = Field(
        5.0,
        gt=0,
        le=1e12,
        description="factor on the honest mean (sign-flip, noise) or on the client's update (scaled, backdoor)",
    )
    target: int = Field(0, ge=0, le=10**9, description="backdoor: the class that images with the trigger get")
    patch: int = Field(
        2, ge=1, le=10**4, description="backdoor: side of the trigger, a bright square in the lower right corner"
    )
    poisoned: float = Field(
        0.5, gt=0, le=1, description="backdoor: share of a malicious client's examples that get trigger and target"
    )

    def settings(self) -> dict[str, Any]:
        """What the summary says about the attack: the keys that it uses."""
        unused = () if self.name == "backdoor" else ("target", "patch", "poisoned")
        return {key: value for key, value in self.model_dump().items() if key not in unused}
