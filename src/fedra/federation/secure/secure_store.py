"""What a site keeps of secure rounds: the secrets of the running one, what it took part in, and whom it met.

The secrets are one file that its owner alone can read, written before every answer and removed after the last, so a
site that is killed goes on where it was, or counts as gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from fedra.config.privacy_sections import SecureSection
from fedra.federation import keys
from fedra.federation.secure.secure_wire import Hex, KeysAnswer, KeysAsk, MemberWords, RoundName
from fedra.privacy.secure.secure_client import ClientRound
from fedra.privacy.secure.secure_messages import Roll, SecureRoundError
from fedra.writing import write_atomically

NAMES_KEPT = 1000


class _StoredRound(BaseModel):
    """A site's state in a round, as it is written."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    ask: KeysAsk
    mask_key: Hex
    share_key: Hex
    seed: Hex
    neighbors: dict[int, KeysAnswer]
    shares: dict[int, tuple[Hex, Hex]]
    stage: int
    answered: list[int] | None
    dropped: list[int] | None


class _History(BaseModel):
    """The rounds that a site took part in: the last one, the last one that it unmasked, and the last names."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    last: tuple[int, int] = (-1, -1)
    unmasked: int = -1
    names: list[RoundName] = []


class _Peers(BaseModel):
    """The fingerprints of other sites' keys, by the name under which they were first seen."""

    fingerprints: dict[str, str] = {}


class SecureStore:
    """The files of a site's secure rounds of one plan, in one folder."""

    def __init__(self, folder: Path, plan: str, section: SecureSection) -> None:
        self._folder, self._section = folder, section
        self._round = folder / "round.json"
        self._history_path = folder / f"rounds-{plan[:16]}.json"
        self._peers_path = folder / "peers.json"

    @property
    def names(self) -> set[bytes]:
        """The names of earlier rounds."""
        return {bytes.fromhex(name) for name in self._history().names}

    def check_new(self, round: NonNegativeInt, attempt: NonNegativeInt) -> None:
        """Raise unless a round may be begun: only forward, and none again that was unmasked.

        Two sums of the same updates over different sites would show the difference.
        """
        known = self._history()
        if round <= known.unmasked:
            raise SecureRoundError(
                f"round {round + 1} was unmasked already and must not be repeated: two sums of the same updates would "
                "show single ones"
            )
        if (round, attempt) <= known.last:
            raise SecureRoundError(
                f"secure rounds must go forward, got round {round + 1}, attempt {attempt + 1} after round "
                f"{known.last[0] + 1}, attempt {known.last[1] + 1}"
            )

    def begin(self, ask: KeysAsk, state: ClientRound) -> None:
        """Keep the state of a new round; an unfinished one before it is forgotten."""
        known = self._history()
        names = [*known.names, ask.name][-NAMES_KEPT:]
        self._write(self._history_path, known.model_copy(update={"last": (ask.round, ask.attempt), "names": names}))
        self.keep(ask, state)

    def keep(self, ask: KeysAsk, state: ClientRound) -> None:
        """Write the state of the running round."""
        stored = _StoredRound(
            ask=ask,
            mask_key=state.mask_key.hex(),
            share_key=state.share_key.hex(),
            seed=state.seed.hex(),
            neighbors={member: KeysAnswer.of(one) for member, one in state.neighbors.items()},
            shares={member: (mask.hex(), seed.hex()) for member, (mask, seed) in state.shares.items()},
            stage=state.stage,
            answered=None if state.roll is None else list(state.roll.answered),
            dropped=None if state.roll is None else list(state.roll.dropped),
        )
        self._write(self._round, stored)

    def load(self, name: str) -> tuple[KeysAsk, ClientRound]:
        """Return the state of the running round; raises a `SecureRoundError` if it is another, or none."""
        try:
            stored = _StoredRound.model_validate_json(self._round.read_bytes())
        except (OSError, ValueError):
            raise SecureRoundError("this site is in no secure round: its keys must be asked for first") from None
        if stored.ask.name != name:
            raise SecureRoundError("this site is in another secure round: its keys must be asked for first")
        roll = None if stored.answered is None else Roll(tuple(stored.answered), tuple(stored.dropped or ()))
        state = ClientRound(
            member=stored.ask.number,
            announcement=stored.ask.announcement(self._section),
            mask_key=bytes.fromhex(stored.mask_key),
            share_key=bytes.fromhex(stored.share_key),
            seed=bytes.fromhex(stored.seed),
            neighbors={member: one.keys() for member, one in stored.neighbors.items()},
            shares={m: (bytes.fromhex(mask), bytes.fromhex(seed)) for m, (mask, seed) in stored.shares.items()},
            stage=stored.stage,
            roll=roll,
        )
        return stored.ask, state

    def finish(self, name: str) -> None:
        """Forget the secrets of a round that was unmasked, and note that it must not be repeated."""
        try:
            ask, _ = self.load(name)
        except SecureRoundError:
            return  # forgotten before
        known = self._history()
        self._write(self._history_path, known.model_copy(update={"unmasked": max(known.unmasked, ask.round)}))
        self._round.unlink(missing_ok=True)

    def check_peers(self, members: Iterable[MemberWords], allowed: Iterable[str]) -> list[str]:
        """Pin the keys of other sites at first sight; returns a line for each new one.

        Args:
            members: The sites of a round.
            allowed: Fingerprints of the policy; if there are any, no other site is accepted.
        """
        known = dict(self._peers().fingerprints)
        policy = list(allowed)
        new = []
        for one in members:
            found = keys.fingerprint(keys.parse_certificate(one.certificate, f"the certificate of {one.site}"))
            if policy and not any(keys.same_fingerprint(found, text) for text in policy):
                raise SecureRoundError(f"policy.peers does not list the fingerprint {found} of {one.site}")
            if known.setdefault(one.site, found) != found:
                raise SecureRoundError(
                    f"the key of {one.site} must be the one that this site met first ({known[one.site]}), got {found}: "
                    f"ask {one.site} by telephone, then remove it from state/secure/peers.json"
                )
            if one.site not in self._peers().fingerprints:
                new.append(f"secure rounds with {one.site}, fingerprint {found}: compare it by telephone")
        if new:
            self._write(self._peers_path, _Peers(fingerprints=known))
        return new

    def _history(self) -> _History:
        return (
            _History.model_validate_json(self._history_path.read_bytes()) if self._history_path.exists() else _History()
        )

    def _peers(self) -> _Peers:
        return _Peers.model_validate_json(self._peers_path.read_bytes()) if self._peers_path.exists() else _Peers()

    def _write(self, path: Path, content: BaseModel) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(content.model_dump(mode="json")).encode(), private=True)
