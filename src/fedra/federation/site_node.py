"""A site: it answers every kind of question with its own data, by its own fedra, within its own policy."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

import fedra
from fedra.core import tree
from fedra.core.model import Weights
from fedra.core.round_zero import first_rows_of
from fedra.core.tree import Tree
from fedra.core.uploads import Uploads
from fedra.errors import FedraError
from fedra.experiment.cohort import Expected, rejection_reasons
from fedra.experiment.secure_run import is_secure
from fedra.experiment.vetting import vet_examples
from fedra.federation import wire
from fedra.federation.audit_log import AuditLog
from fedra.federation.federation_plan import FederationPlan, parse_plan
from fedra.federation.local_data.site_cache import NUMBERS
from fedra.federation.received_model import Refused, check_cohort, receive_model, upload_tree
from fedra.federation.secure import secure_wire
from fedra.federation.secure.secure_site import MASKED, SecureSite
from fedra.federation.site_evaluation import evaluate_clients, finish_clients
from fedra.federation.site_folder import record_end
from fedra.federation.site_job import SiteJob, SiteSide
from fedra.federation.site_memory import Outbox, SiteMemory
from fedra.federation.site_privacy import BudgetSpent, SitePrivacy
from fedra.federation.wire import Packet, Refusal, Words, packet
from fedra.privacy.secure.secure_messages import SecureRoundError
from fedra.runners import RUNNERS, Result, Runner, iterate_results
from fedra.storage.client_state import DamagedFile
from fedra.storage.client_state.client_files import digest_of
from fedra.writing import write_atomically

MANY = 8
"""Number of clients from which a site trains them in a stack, unless its file names a runner."""


@dataclass(frozen=True)
class _Joined:
    """What a site knows after the start: the plan, and its job with the start model."""

    plan: FederationPlan
    job: SiteJob
    memory: SiteMemory


class SiteNode:
    """Answers questions one after the other; what it must not forget is in its folder."""

    def __init__(
        self,
        folder: Path,
        side: SiteSide,
        runner: str = "auto",
        threads: int = 1,
        tell: Callable[[str], None] = lambda line: None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._folder, self._side, self._runner, self._threads = folder, side, runner, threads
        self._tell, self._now = tell, now
        self._state = folder / "state"
        self._outbox = Outbox(self._state / "outbox")
        self._joined: _Joined | None = None
        self._expected: dict[str, Expected] = {}
        self.log = AuditLog(folder / "log.jsonl")
        self.over = False
        self.refusal: str | None = None  # why this site's part in the federation is over, if it refused the plan
        self._kinds: Mapping[str, Callable[[Packet], Packet]] = {
            "describe": self._describe,
            "start": self._start,
            "round-zero": self._round_zero,
            "train": self._train,
            "evaluate": self._evaluate,
            **dict.fromkeys(secure_wire.ANSWERS, self._secure_stage),
        }

    def answer(self, ask: Packet) -> Packet:
        """Answer a question; whatever fails becomes a refusal that names no file and no person."""
        try:
            self.log.record("asked", kind=ask.kind[:20], digest=ask.digest, bytes=ask.nbytes)
            if ask.kind not in self._kinds:
                raise Refused(f"this site does not know questions of the kind '{ask.kind[:20]}'")
            return self._kinds[ask.kind](ask)
        except Refused as error:
            return self._refuse(ask, str(error), error.final)
        except wire.WireError as error:
            return self._refuse(ask, str(error))
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            self._tell(f"error: {error}")
            return self._refuse(ask, "its disk is full" if full else "a file at the site cannot be read or written")
        except FedraError as error:
            self._tell(f"error: {error}")
            return self._refuse(ask, "it failed at the site, whose terminal says why")

    def _refuse(self, ask: Packet, reason: str, final: bool = False) -> Packet:
        about = {"kind": ask.kind[:20], "digest": ask.digest, "reason": reason}
        try:
            self.log.record("refused", **about)
        except OSError:  # the disk is full: a refusal may leave, and is logged when there is room
            self.log.record_later("refused", **about)
        self._tell(f"refused '{ask.kind[:20]}': {reason}")
        if final:
            self.over, self.refusal = True, reason
        return packet(wire.REFUSED, Refusal(reason=reason[:500], final=final))

    def _leave(self, ask: Packet, words: Words, tensors: Tree | None = None, **details: Any) -> Packet:
        """The only way out: what leaves is written to the log before it is sent."""
        answer = packet(ask.kind, words, {"own": wire.encode_tree(tensors or {})})
        about = {"kind": ask.kind, "answers": ask.digest, "digest": answer.digest, **details}
        said = words.model_dump(mode="json", exclude_none=True)
        self.log.record_tensors("sent", tree.flatten(tensors or {}), **about, words=said)
        return answer

    # describe and start

    def _describe(self, ask: Packet) -> Packet:
        words = ask.read(wire.DescribeAsk)
        if words.fedra != fedra.__version__:
            raise Refused(
                f"it has fedra {fedra.__version__}, this federation needs {words.fedra}: pip install "
                f"'fedra[federation]=={words.fedra}'",
                final=True,
            )
        if words.wire != wire.WIRE:
            raise Refused(f"it speaks version {wire.WIRE} of the messages, the coordinator {words.wire}", final=True)
        plan = parse_plan(words.plan, "the coordinator's plan")
        if self._side.renew():
            self._tell("from the next round on with the data that were read anew")
        if reasons := self._side.check(plan):
            raise Refused("; ".join(reasons)[:500], final=True)
        self._state.mkdir(parents=True, exist_ok=True)
        write_atomically(self._state / "plan.json", json.dumps(plan.public).encode())
        described = self._side.describe(plan)
        start = self._state / "start.safetensors"
        known = digest_of(start.read_bytes()) if start.exists() else None
        return self._leave(ask, described.model_copy(update={"start": known}))

    def _start(self, ask: Packet) -> Packet:
        words = ask.read(wire.StartAsk)
        plan = self._plan(words.plan)
        path = self._state / "start.safetensors"
        if blob := ask.blobs.get("shared"):
            write_atomically(path, blob)
        if not path.exists() or digest_of(path.read_bytes()) != words.start:
            raise Refused("the model that the run starts from did not arrive: it must be sent again")
        write_atomically(self._folder / NUMBERS, json.dumps(words.numbers).encode())
        self._joined, self._expected = None, {}
        self._open(plan)
        return self._leave(ask, wire.Acknowledged())

    def _plan(self, digest: str) -> FederationPlan:
        """Return the plan that this site approved, if the message belongs to it."""
        path = self._state / "plan.json"
        plan = parse_plan(json.loads(path.read_bytes()), f"'{path}'") if path.exists() else None
        if plan is None or plan.digest != digest:
            raise Refused("the message belongs to another plan than the one this site approved")
        return plan

    def _open(self, plan: FederationPlan) -> _Joined:
        if self._joined is not None and self._joined.plan.digest == plan.digest:
            return self._joined
        try:
            numbers = json.loads((self._folder / NUMBERS).read_bytes())
            start = wire.decode_tree((self._state / "start.safetensors").read_bytes())
        except FileNotFoundError:
            raise Refused("this site has no start model yet: it must be sent first") from None
        job = self._side.build_job(plan, numbers)
        weights = Weights(start.get("params", {}), start.get("buffers", {}))
        memory = SiteMemory(self._state / "memory")
        job = job.with_start(weights)
        if plan.config.privacy.level == "example":
            vet_examples(job, next(iter(job.clients.examples)))
        self._joined = _Joined(plan, job, memory)
        return self._joined

    # rounds

    def _round_zero(self, ask: Packet) -> Packet:
        words = ask.read(wire.RoundZeroAsk)
        joined = self._open(self._plan(words.plan))
        job = joined.job
        check_cohort(words.cohort, job)
        rows: Tree = {str(client): first_rows_of(job, client, job.kept or job.model.start) for client in words.cohort}
        return self._leave(ask, wire.Acknowledged(), rows)

    def _train(self, ask: Packet) -> Packet:
        words = ask.read(wire.TrainAsk)
        joined = self._open(self._plan(words.plan))
        if is_secure(joined.plan.config):
            raise Refused("the plan adds up updates securely: a single update does not leave this site")
        self._begin_training(joined, words)
        if (kept := self._find_kept(ask)) is not None:
            return kept
        started = self._now()
        job, results, lost = self._train_clients(joined, ask, words)
        trained = [self._words(job, joined.plan, result, lost.get(result.client)) for result in results]
        uploads: Tree = {str(result.client): upload_tree(job, result.upload) for result in results}
        details = {"round": words.round + 1, "clients": len(results)}
        answer = self._leave(
            ask, wire.TrainAnswer(trained=trained, changed=self._side.has_changed()), uploads, **details
        )
        self._outbox.keep(words.round, ask.digest, answer)
        self._tell_trained(joined, words, results, answer, started)
        return answer

    def _begin_training(self, joined: _Joined, words: wire.TrainAsk) -> None:
        """Raise unless the policy lets these clients train now, and forget what is not needed anymore."""
        policy = self._side.policy
        check_cohort(words.cohort, joined.job)
        if words.attempt >= policy.attempts or words.round >= joined.plan.config.rounds:
            raise Refused(f"policy.attempts = {policy.attempts} at most, asked for round {words.round + 1} again")
        if not policy.may_train_at(self._now().time()):
            raise Refused(f"not now: policy.hours = '{policy.hours}'")
        joined.memory.forget(words.memory, words.durable)
        self._outbox.forget(words.durable)

    def _find_kept(self, ask: Packet) -> Packet | None:
        """Return the answer that was given to the same question before."""
        if (kept := self._outbox.find(ask.digest)) is not None:
            self.log.record("sent-again", kind=ask.kind, answers=ask.digest, digest=kept.digest, bytes=kept.nbytes)
            self._tell(f"'{ask.kind}' is sent again")
        return kept

    def _train_clients(
        self, joined: _Joined, ask: Packet, words: wire.TrainAsk
    ) -> tuple[SiteJob, list[Result], dict[int, str]]:
        """Train clients and store their state; returns the job, their results, and whose earlier state was lost."""
        job, origin, received = receive_model(joined.job, ask, words)
        lost, memories = self._recall(joined, words.cohort, words.memory)
        try:
            recall = SitePrivacy(self._state, joined.plan, job, self._side.policy).add_keys(
                ask, words, lambda c: job.client_state(c, origin, memories[c])
            )
        except BudgetSpent as error:
            raise Refused(str(error)) from None
        results = self._run(job, words.round, origin, received, words.cohort, recall)
        for result in results:
            if result.memory:
                diverged = result.upload.broken_step is not None or not tree.is_finite(result.upload.delta)
                kept = memories[result.client] if diverged else result.memory
                joined.memory.store(result.client, (words.round, words.attempt), kept)
        self._check_declared(job, origin, received, results)
        return job, results, lost

    def _tell_trained(
        self, joined: _Joined, words: wire.TrainAsk, results: Sequence[Result], answer: Packet, started: datetime
    ) -> None:
        seconds = (self._now() - started).total_seconds()
        count = sum(result.upload.examples for result in results)
        self._tell(
            f"round {words.round + 1} of {joined.plan.config.rounds}: trained {seconds:.1f} s on {count:,} examples, "
            f"sends {answer.nbytes / 1e6:.2f} MB"
        )

    # secure rounds

    def _secure_stage(self, ask: Packet) -> Packet:
        """Answer a stage of a secure round; the same question gets the same answer again, another one is refused."""
        joined = self._open(self._plan(wire.plan_of(ask)))
        if not is_secure(joined.plan.config):
            raise Refused("the plan has no secure rounds")
        site = SecureSite(self._folder, joined.plan, joined.job, self._side.policy, self._tell)
        try:
            kept = self._find_kept(ask)
            if kept is None:
                kept = self._mask(ask, joined, site) if ask.kind == "masked" else self._relay(ask, site)
            if ask.kind == "unmask":  # the answer is on the disk
                site.forget(ask)
            return kept
        except SecureRoundError as error:
            raise Refused(str(error)) from None

    def _relay(self, ask: Packet, site: SecureSite) -> Packet:
        words, round = site.answer(ask)
        answer = self._leave(ask, words, round=round + 1)
        self._outbox.keep(round, ask.digest, answer)
        return answer

    def _mask(self, ask: Packet, joined: _Joined, site: SecureSite) -> Packet:
        """Train, and send the masked sum over this site's clients."""
        words = ask.read(secure_wire.MaskedAsk)
        site.check_masked(words)
        self._begin_training(joined, words)
        started = self._now()
        job, results, lost = self._train_clients(joined, ask, words)
        examples = {one.client: self._words(job, joined.plan, one, None).examples for one in results}
        said, masked = site.mask(words, results, examples, lost)
        answer = self._leave(ask, said, {MASKED: masked}, round=words.round + 1, clients=len(said.clients))
        self._outbox.keep(words.round, ask.digest, answer)
        self._tell_trained(joined, words, results, answer, started)
        return answer

    def _run(
        self,
        job: SiteJob,
        round: int,
        origin: Weights,
        received: Tree,
        cohort: Sequence[int],
        memory: Callable[[int], Tree],
    ) -> list[Result]:
        runner = self.open_runner(job)
        try:
            return list(iterate_results(runner.train(round, origin, received, cohort, memory)))
        finally:
            runner.close()

    def open_runner(self, job: Any) -> Runner:
        """Open the site's own runner for its clients."""
        name = self._runner
        if name == "auto":
            name = "stacked" if len(job.clients) >= MANY else "sequential"
        runner: Runner = RUNNERS[name](job, threads=self._threads)
        return runner

    def _recall(
        self, joined: _Joined, cohort: Sequence[int], named: Mapping[int, tuple[int, int]]
    ) -> tuple[dict[int, str], dict[int, Tree]]:
        """Return each client's state as named by the coordinator, and which of them are lost."""
        lost: dict[int, str] = {}
        found: dict[int, Tree] = {client: {} for client in cohort}
        for client in cohort:
            if client in named:
                try:
                    found[client] = joined.memory.load(client, named[client])
                except DamagedFile:
                    lost[client] = "its state is lost at the site, so it begins again from the global model"
        return lost, found

    def _words(self, job: SiteJob, plan: FederationPlan, result: Result, lost: str | None) -> wire.TrainedWords:
        upload, policy = result.upload, self._side.policy
        own = job.clients.size(result.client)
        shown = policy.shown_count(own) if plan.federation.weighting == "examples" else 1
        covered = plan.config.privacy.level == "example" and plan.config.privacy.figures == "covered"
        metrics = {name: value for name, value in upload.metrics.items() if policy.may_leave(name) and not covered}
        return wire.TrainedWords(
            client=result.client,
            examples=(shown or 1) + (upload.examples - own if plan.federation.weighting == "examples" else 0),
            steps=upload.steps,
            effective_steps=upload.effective_steps,
            metrics=metrics,
            broken_step=upload.broken_step,
            restarted=lost,
            remembers=bool(result.memory),
        )

    def _check_declared(self, job: SiteJob, origin: Weights, received: Tree, results: Sequence[Result]) -> None:
        """Raise if an upload has a tensor that the plan does not declare: the same check as the coordinator's."""
        for result in results:
            known = f"{job.classes_of(result.client)}"
            if known not in self._expected:
                whole = job.algorithm.sharing.received(origin, job.client_state(result.client, origin, {}))
                self._expected[known] = Expected.of_weights(job, whole, received)
            form = self._expected[known].holding(job.classes_of(result.client))
            (reason,) = rejection_reasons(Uploads.of(result.upload), form)
            if reason is not None and "finite" not in reason:
                raise Refused(f"the plan's upload does not fit its own declaration: client {result.client} {reason}")

    # tests

    def _evaluate(self, ask: Packet) -> Packet:
        words = ask.read(wire.EvaluateAsk)
        joined = self._open(self._plan(words.plan))
        check_cohort(words.cohort, joined.job)
        job, origin, received = receive_model(joined.job, ask, words)
        _, memories = self._recall(joined, words.cohort, words.memory)
        states = {client: job.client_state(client, origin, memories[client]) for client in words.cohort}
        with torch.no_grad():
            tested = evaluate_clients(job, origin, states)
        if words.final:
            tested = finish_clients(
                job, self.open_runner, origin, received, memories, words.round, tested, joined.plan, self._folder
            )
            record_end(self._folder, joined.plan, words.round)
        self._tell(_accuracy_line(words, joined.plan, tested))
        policy = self._side.policy
        leaving = [one for one in tested if policy.may_leave("accuracy", one.examples)]
        self.over = words.final
        answer = wire.EvaluateAnswer(tested=leaving, changed=self._side.has_changed())
        return self._leave(ask, answer, round=words.round, clients=len(leaving))


def _accuracy_line(words: wire.EvaluateAsk, plan: FederationPlan, tested: Sequence[wire.EvaluatedWords]) -> str:
    count = sum(one.examples for one in tested)
    share = sum(one.correct for one in tested) / max(count, 1)
    own = [one.own_correct for one in tested if one.own_correct is not None]
    mine = f", your own model {sum(own) / max(count, 1):.1%}" if own else ""
    when = f"the federation is over after {words.round} rounds" if words.final else f"after round {words.round}"
    return f"{when}: on your {count:,} held-out examples, global model {share:.1%}{mine}"
