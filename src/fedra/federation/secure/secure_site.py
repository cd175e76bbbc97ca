"""A site's part in secure rounds: of its clients' updates only a masked sum leaves.

The site is one member of the protocol. It adds up its own clients' integers before they are masked, so the coordinator
sees a sum over sites, and other sites see nothing but public keys and encrypted shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from cryptography import x509

from fedra.core.capabilities import ReleaseTerms
from fedra.core.released_fold import Layout, upload_blocks
from fedra.core.round import broadcast, init_server
from fedra.core.uploads import Uploads
from fedra.experiment.cohort import Expected, rejection_reasons
from fedra.experiment.private_run import blank_upload, weight_by
from fedra.experiment.secure_run import ring_vectors
from fedra.federation import keys, wire
from fedra.federation.federation_plan import FederationPlan
from fedra.federation.policy import Policy
from fedra.federation.secure.secure_store import SecureStore
from fedra.federation.secure.secure_wire import (
    KeysAnswer,
    KeysAsk,
    MaskedAnswer,
    MaskedAsk,
    RollAnswer,
    RollAsk,
    SharesAnswer,
    SharesAsk,
    UnmaskAnswer,
    UnmaskAsk,
    from_hex,
    to_hex,
)
from fedra.federation.site_job import SiteClients, SiteJob
from fedra.federation.wire import Packet, Words
from fedra.privacy.secret import Secret
from fedra.privacy.secure import secure_client as client
from fedra.privacy.secure.ring_vectors import RingVectors
from fedra.privacy.secure.secure_messages import DeliveredShares, NeighborKeys, SecureRoundError, SignedRoll
from fedra.runners import Result

MASKED = "masked"
"""The name of the tensor that leaves."""


@dataclass(frozen=True)
class SecureSite:
    """Answers the stages of a secure round.

    Args:
        folder: The site's folder, with its key.
        plan: The plan that the site approved.
        job: Its job.
        policy: What the site allows: attempts, other sites, peers.
        tell: Says a line to the people at the site.
    """

    folder: Path
    plan: FederationPlan
    job: SiteJob
    policy: Policy
    tell: Callable[[str], None]

    @cached_property
    def store(self) -> SecureStore:
        """What the site keeps of secure rounds."""
        return SecureStore(self.folder / "state" / "secure", self.plan.digest, self.plan.config.secure)

    def answer(self, ask: Packet) -> tuple[Words, int]:
        """Answer a stage without training; returns the words, and the round that they belong to."""
        stages: Mapping[str, Callable[[Packet], tuple[Words, KeysAsk]]] = {
            "keys": self._publish_keys,
            "shares": self._share_secrets,
            "roll": self._sign_roll,
            "unmask": self._unmask,
        }
        words, opened = stages[ask.kind](ask)
        return words, opened.round

    def forget(self, ask: Packet) -> None:
        """Forget the secrets of a round whose last answer is on the disk."""
        self.store.finish(ask.read(UnmaskAsk).name)

    def _publish_keys(self, ask: Packet) -> tuple[KeysAnswer, KeysAsk]:
        """Stage 1: accept the terms of a round and publish its keys."""
        words = ask.read(KeysAsk)
        self._check_members(words)
        if words.attempt >= self.policy.attempts or words.round >= self.plan.config.rounds:
            raise SecureRoundError(
                f"policy.attempts = {self.policy.attempts} at most, asked for round {words.round + 1} again"
            )
        self.store.check_new(words.round, words.attempt)
        layout = self._layout(words)
        vectors = self._vectors(words, layout)
        announcement = words.announcement(self.plan.config.secure)
        if words.length != vectors.size:
            raise SecureRoundError(f"vectors of this plan have {vectors.size} numbers, got {words.length}")
        state, published = client.join_round(
            words.number, announcement, layout.digest, vectors.words, self.store.names, self._sign
        )
        self.store.begin(words, state)
        return KeysAnswer.of(published), words

    def _share_secrets(self, ask: Packet) -> tuple[SharesAnswer, KeysAsk]:
        """Stage 2: give every neighbor its shares."""
        words = ask.read(SharesAsk)
        opened, state = self.store.load(words.name)
        neighbors = NeighborKeys({member: one.keys() for member, one in words.keys.items()})
        state, shares = client.share_secrets(state, neighbors, self._verifier(opened))
        self.store.keep(opened, state)
        return SharesAnswer(boxes=to_hex(shares.boxes)), opened

    def check_masked(self, words: MaskedAsk) -> None:
        """Raise unless the training that is asked for is that of the running round, before anything is trained."""
        opened, state = self.store.load(words.name)
        asked = (words.round, words.attempt, sorted(words.cohort))
        if asked != (opened.round, opened.attempt, sorted(opened.clients)) or state.stage != 2:
            raise SecureRoundError("the training of a secure round must be the one whose keys were asked for, once")

    def mask(
        self, words: MaskedAsk, results: Sequence[Result], examples: Mapping[int, int], lost: Mapping[int, str]
    ) -> tuple[MaskedAnswer, torch.Tensor]:
        """Stage 3: add up the clients' integers, and mask the sum.

        Args:
            words: The question.
            results: The clients' results.
            examples: The number of examples that each client tells, which is its weight.
            lost: Clients whose state was lost, and why.
        """
        opened, state = self.store.load(words.name)
        layout = self._layout(opened)
        vectors = self._vectors(opened, layout)
        total = np.zeros(vectors.size, dtype=np.uint32)
        summed = []
        for result in results:
            # Under differential privacy the coordinator must not learn whose update is not finite: it counts as zero.
            if (valid := self._is_valid(result)) or vectors.clip is not None:
                total += self._encode(opened, vectors, layout, result, examples[result.client], valid)
                summed.append(result)
        if not summed:
            raise SecureRoundError("no client of this site has a finite update")
        state, masked = client.mask_vector(state, DeliveredShares(from_hex(words.boxes)), total)
        self.store.keep(opened, state)
        answer = MaskedAnswer(
            clients=[one.client for one in summed],
            remembers=[one.client for one in summed if one.memory],
            restarted={one.client: lost[one.client] for one in summed if one.client in lost},
        )
        return answer, torch.from_numpy(masked.view(np.int32))

    def _sign_roll(self, ask: Packet) -> tuple[RollAnswer, KeysAsk]:
        """Stage 4: sign who answered."""
        words = ask.read(RollAsk)
        opened, state = self.store.load(words.name)
        state, signature = client.sign_roll(state, words.roll(), self._sign)
        self.store.keep(opened, state)
        return RollAnswer(signature=signature.hex()), opened

    def _unmask(self, ask: Packet) -> tuple[UnmaskAnswer, KeysAsk]:
        """Stage 5: reveal the shares that remove the masks; `forget` follows once the answer is kept."""
        words = ask.read(UnmaskAsk)
        opened, state = self.store.load(words.name)
        signed = SignedRoll(words.roll(), from_hex(words.signatures))
        _, revealed = client.reveal_shares(state, signed, self._verifier(opened))
        return UnmaskAnswer(seeds=to_hex(revealed.seeds), mask_keys=to_hex(revealed.mask_keys)), opened

    # what the site knows by itself

    def _encode(
        self, opened: KeysAsk, vectors: RingVectors, layout: Layout, result: Result, examples: int, valid: bool
    ) -> np.ndarray:
        """Return a client's integers, with its share of the noise if clients add any."""
        privacy = self.plan.config.privacy
        weight = examples / opened.largest if privacy.level != "client" else weight_by(privacy)(examples)
        blocks = upload_blocks(self.job.algorithm, Uploads.of(result.upload), self._terms(opened))
        secret = None
        if vectors.noise:
            secret = Secret.from_seed(self.plan.config.seed) if privacy.seed == "run" else Secret.create()
        place = (result.client, opened.round, opened.attempt)
        vector = layout.flatten(blocks)[0] if valid else torch.full((layout.length,), torch.nan)
        return vectors.encode(vector, weight, secret, *place)

    def _is_valid(self, result: Result) -> bool:
        """Return whether a client's update can be added up; the site's screen says why not."""
        (reason,) = rejection_reasons(Uploads.of(result.upload), self._expected)
        if reason is not None:
            self.tell(f"client {result.client} adds nothing to the sum: {reason}")
        return reason is None

    @cached_property
    def _expected(self) -> Expected:
        """What a client sends by the plan, whatever the coordinator says."""
        job, start = self.job, self.job.kept
        assert start is not None  # the job was opened
        assert isinstance(job.clients, SiteClients)
        number = next(iter(job.clients.examples))
        whole = job.algorithm.sharing.received(start, job.client_state(number, start, {}))
        received = broadcast(job.algorithm, init_server(job.algorithm, whole))
        return Expected.of_weights(job, whole, received).holding(job.classes_of(number))

    def _terms(self, words: KeysAsk) -> ReleaseTerms:
        return ReleaseTerms(self.job.local.at(words.round), words.steps, words.equal_steps)

    def _layout(self, words: KeysAsk) -> Layout:
        return Layout.of(upload_blocks(self.job.algorithm, blank_upload(self._expected), self._terms(words)))

    def _vectors(self, words: KeysAsk, layout: Layout) -> RingVectors:
        config = self.plan.config
        private, clip = config.privacy.level == "client", config.privacy.clip
        fixed = private and not config.privacy.adapts_clip
        if private != (words.clip is not None) or (fixed and clip != words.clip):
            raise SecureRoundError(
                f"the clip norm must be the plan's ({clip if private else 'none'}), got {words.clip}"
            )
        return ring_vectors(config, sum(one.clients for one in words.members), layout.length, words.clip)

    def _check_members(self, words: KeysAsk) -> None:
        """Raise unless this site is in the list with its own key and clients, and all others have keys of their own."""
        numbers = [one.number for one in words.members]
        own = next((one for one in words.members if one.number == words.number), None)
        certificates = {one.number: _certificate(one.certificate, one.site) for one in words.members}
        mine = keys.fingerprint(keys.read_certificate(keys.site_files(self.folder).certificate))
        if own is None or own.clients != len(words.clients) or keys.fingerprint(certificates[own.number]) != mine:
            raise SecureRoundError("the members of a secure round must include this site, with its key and its clients")
        prints = {keys.fingerprint(one) for one in certificates.values()}
        if len(prints) != len(numbers):
            raise SecureRoundError("every site of a secure round must have its own key, got one key twice")
        if len(numbers) - 1 < self.policy.other_sites:
            raise SecureRoundError(
                f"policy.other_sites = {self.policy.other_sites} at least: this round has {len(numbers) - 1} others"
            )
        for line in self.store.check_peers(
            (one for one in words.members if one.number != own.number), self.policy.peers
        ):
            self.tell(line)

    def _sign(self, words: bytes) -> bytes:
        return keys.sign(self.folder, words)

    def _verifier(self, opened: KeysAsk) -> Callable[[int, bytes, bytes], bool]:
        certificates = {one.number: _certificate(one.certificate, one.site) for one in opened.members}

        def verify(member: int, words: bytes, signature: bytes) -> bool:
            return member in certificates and keys.has_signed(certificates[member], words, signature)

        return verify


def _certificate(pem: str, site: str) -> x509.Certificate:
    try:
        return keys.parse_certificate(pem, f"the certificate of {site}")
    except Exception as error:  # whatever a hostile coordinator sends
        raise wire.WireError(f"the certificate of {site[:50]} cannot be read ({type(error).__name__})") from None
