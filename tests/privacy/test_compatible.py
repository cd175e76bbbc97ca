"""Which method goes with which level of privacy: every method is in the table, supported or refused with a sentence."""

import pytest
import torch

from fedra.algorithms import ALGORITHMS, fedarc, fedavg, fedcos, fednova, fedpe, scaffold
from fedra.core.released_fold import Layout, ReleasedFold, upload_blocks
from fedra.errors import ConfigError
from fedra.experiment.private_run import release_terms
from fedra.experiment.vetting import vet_examples
from fedra.losses import CosFace, CurricularFace
from fedra.parts.private import PrivateMean, clip_as_released
from fedra.privacy.client_level import ClipAndNoise, PrivateSum
from fedra.privacy.compatible import check_examples, check_sums
from fedra.privacy.secret import Secret
from fedra.runners import RUNNERS
from toy import clients, job, start

ROWS = "class vector of every person"
CLIENT = {
    "fedpe": ROWS,
    "fedgc": ROWS,
    "fedcos": ROWS,
    "fedaws": ROWS,
    "fedface": f"{ROWS}|mean features",
    "fedfr": f"{ROWS}|mean features",
    "fedsmoo": "collects numbers from every upload",
}
"""Methods that the level of clients refuses, with a part of the sentence; it supports all others."""

SEVERAL, COUNTS = "looks at several examples", "client's label counts"
EXAMPLE = {
    "feddecorr": SEVERAL,
    "fedfs": SEVERAL,
    "per-fedavg": SEVERAL,
    "fedlc": COUNTS,
    "fedrs": COUNTS,
    "fedface": "mean features",
    "fedfr": "mean features|public",
    "fedsmoo": "carries numbers of the examples from step to step",
}
"""Methods that the level of examples refuses."""


def build(name):
    return ALGORITHMS[name]()


def refused_by_clients(algorithm):
    check_sums(algorithm, has_buffers=False, section="privacy")


def refused_by_examples(algorithm):
    check_examples(algorithm, moves_buffers=False, mixes=False, counts_public=False, public_data=False)


def test_the_tables_name_methods_that_exist():
    assert CLIENT.keys() | EXAMPLE.keys() <= set(ALGORITHMS)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize(("check", "table"), [(refused_by_clients, CLIENT), (refused_by_examples, EXAMPLE)])
def test_every_method_is_supported_or_refused_with_its_sentence(name, check, table):
    if name in table:
        with pytest.raises(ConfigError, match=table[name]):
            check(build(name))
    else:
        check(build(name))


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - EXAMPLE.keys()))
def test_supported_methods_mean_the_same_on_single_examples(name):
    vet_examples(job(build(name)))


VARIANTS = {
    "rows that stay": lambda: fedpe(kept=True),
    "a sum of unit rows": lambda: fedcos(kept=True),
    "fixed rows": lambda: fedpe(fixed=True),
    "margin without state": lambda: fedpe(kept=True, margin=CosFace()),
    "FedArc's code": lambda: fedarc(objective="repo"),
    "FedNova with control": lambda: fednova(control="correct"),
    "FedNova as its code runs": lambda: fednova(control="official"),
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_variants_that_the_level_of_clients_supports(variant):
    refused_by_clients(variant())


def test_a_margin_with_running_state_is_refused_at_both_levels():
    for check in (refused_by_clients, refused_by_examples):
        with pytest.raises(ConfigError, match="without running state"):
            check(fedarc(margin=CurricularFace()))


def round_with(algorithm, clip):
    """One private round without noise, after which clients have state."""
    algorithm = algorithm.plus(PrivateMean(inner=algorithm.combine, noise=0.0, clip=clip, expected=3.0))
    work = job(algorithm, data=clients(sizes=(8, 8, 8)))
    history, runner = start(work), RUNNERS["sequential"](work)
    server = history.server
    from fedra.core.round import broadcast
    from fedra.core.uploads import Uploads

    sent = broadcast(algorithm, server)
    results = list(runner.train(0, server.weights, sent, range(3), lambda client: {}))
    terms = release_terms(work, 0)
    blocks = [upload_blocks(algorithm, Uploads.of(result.upload), terms) for result in results]
    layout = Layout.of(blocks[0])
    numbers = ClipAndNoise(clip=clip, noise=0.0, divisor=3.0, expected=3.0)
    fold = ReleasedFold(algorithm, PrivateSum(numbers, layout.length, Secret(bytes(32)), 0, 0), layout, terms)
    for result in results:
        fold.add_stack(Uploads.of(result.upload))
    return work, results, fold.finish(server, work.population)


def test_control_variates_keep_the_clipped_drift_so_the_mean_stays_their_mean():
    for clip in (1e-3, 1e3):
        _, results, server = round_with(scaffold(), clip)
        own = [result.memory["control-variates"]["own"] for result in results]
        for name, mean in server.memory["control-variates"]["mean"].items():
            expected = torch.stack([one[name] for one in own]).mean(dim=0)
            assert torch.allclose(mean, expected, rtol=1e-4, atol=1e-7), (clip, name)


def test_the_mean_direction_of_fednova_follows_the_released_sum():
    _, results, server = round_with(fednova(control="correct"), 1e6)
    for name, mean in server.memory["nova-direction"]["mean"].items():
        own = torch.stack([result.memory["nova-direction"]["own"][name] for result in results])
        assert torch.allclose(mean, own.mean(dim=0), rtol=1e-4, atol=1e-7), name


def test_an_update_is_clipped_as_the_server_does():
    work = job(fedavg())
    program = work.program(0, work.initial(), {"private-mean": {"clip": torch.tensor([0.5], dtype=torch.float64)}})
    client = program.client({}, 4, torch.ones(4))
    update = {"a": torch.full((4,), 3.0), "b": torch.zeros(2)}
    assert torch.linalg.vector_norm(clip_as_released(update, client)["a"]).item() == pytest.approx(0.5)
    small = {"a": torch.full((4,), 0.1)}
    assert torch.equal(clip_as_released(small, client)["a"], small["a"])
    plain = work.program(0, work.initial(), {}).client({}, 4, torch.ones(4))
    assert clip_as_released(update, plain) is update
