"""Each attack finds what is there to find, and is at chance where nothing is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import beta
from torch import nn
from torch.nn import functional as F

from fedra.core.random import generator, scoped_seed
from fedra.errors import ConfigError
from fedra.privacy.accounting import Mechanism, gaussian_epsilon
from fedra.privacy.audit import (
    AuditFigure,
    CanaryScores,
    Finding,
    Membership,
    allowed_rate,
    clopper_pearson,
    invert_gradient,
    invert_rows,
    judge_canaries,
    one_run_epsilon,
    psnr,
    rank_by_pixels,
    read_off_dense_layer,
    run_canaries,
    score_against_shadows,
    score_people,
)
from fedra.privacy.audit.gradient_inversion import clip_and_noise, match_pictures
from fedra.privacy.audit.photo_scores import split_pairs
from fedra.privacy.audit.row_inversion import rank_of, share_beaten
from fedra.privacy.client_level import ClipAndNoise, PrivateSum
from fedra.privacy.secret import Secret


def naive_auc(members, others):
    wins = [(a > b) + 0.5 * (a == b) for a in members for b in others]
    return sum(wins) / len(wins)


def test_the_auc_counts_wins_and_half_the_ties():
    draw = np.random.default_rng(1)
    members, others = draw.integers(0, 6, 30).astype(float), draw.integers(0, 5, 40).astype(float)
    assert Membership(members, others).auc == pytest.approx(naive_auc(members, others), abs=1e-12)


def test_scores_that_say_nothing_are_at_chance_and_good_ones_are_not():
    draw = np.random.default_rng(2)
    same = Membership(draw.normal(size=500), draw.normal(size=500))
    apart = Membership(draw.normal(1.5, size=500), draw.normal(size=500))
    assert not same.figures()[0].above_chance
    assert all(figure.above_chance for figure in apart.figures())
    assert not same.exceeds(0.1, 1e-5)
    assert apart.exceeds(0.1, 1e-5)
    assert not apart.exceeds(8.0, 1e-5)


def test_the_interval_over_people_is_wider_than_over_photographs():
    draw = np.random.default_rng(3)
    people = np.repeat(np.arange(20), 25)
    members = draw.normal(size=20)[people] + 0.1 * draw.normal(size=500)
    others = draw.normal(size=500)
    one, grouped = Membership(members, others), Membership(members, others, people)
    assert (grouped.figures()[0].high - grouped.figures()[0].low) > 2 * (one.figures()[0].high - one.figures()[0].low)


def test_true_positives_keep_the_false_positive_rate_with_ties():
    test = Membership(np.array([2.0, 2.0, 1.0]), np.array([2.0, 0.0, 0.0, 0.0]))
    assert test.caught(0.2) == (0, 0)
    assert test.caught(0.25) == (3, 1)


def test_a_rate_that_the_others_cannot_resolve_is_left_out():
    names = [figure.name for figure in Membership(np.arange(300.0), np.arange(300.0)).figures()]
    assert names == ["AUC", "true positives at 1.0% false positives"]


def test_scores_must_be_finite():
    with pytest.raises(ConfigError, match="finite"):
        Membership(np.array([np.nan]), np.array([0.0]))


def test_the_exact_interval_has_the_tails_of_the_beta_law():
    low, high = clopper_pearson(7, 20)
    assert beta.cdf(low, 7, 14) == pytest.approx(0.025)
    assert beta.sf(high, 8, 13) == pytest.approx(0.025)
    assert clopper_pearson(20, 20)[1] == 1.0


def test_no_gaussian_attack_is_above_what_its_epsilon_allows():
    from scipy.stats import norm

    mu, delta = 1.3, 1e-5
    epsilon = gaussian_epsilon(mu, delta)
    thresholds = np.linspace(-4, 6, 200)
    for threshold in thresholds:
        assert norm.sf(threshold - mu) <= allowed_rate(norm.sf(threshold), epsilon, delta) + 1e-12


def test_lira_finds_members_that_a_threshold_cannot():
    """Hard members score below easy others; against models without them they stand out."""
    draw = np.random.default_rng(4)
    hardness = draw.normal(0, 5, 400)
    shadows = hardness + draw.normal(size=(8, 400))
    held_out = np.stack([split_pairs(400, number, 0) for number in range(8)])
    member = np.arange(400) < 200
    scores = hardness + draw.normal(size=400) + 2.0 * member
    lira = score_against_shadows(scores, shadows, held_out)
    plain = Membership(scores[member], scores[~member]).auc
    assert plain < 0.65
    assert Membership(lira[member], lira[~member]).auc > 0.85
    useless = score_against_shadows(hardness + draw.normal(size=400), shadows, held_out)
    assert not Membership(useless[member], useless[~member]).figures()[0].above_chance


def test_every_example_is_left_out_by_half_of_the_shadow_models():
    splits = np.stack([split_pairs(100, number, 5) for number in range(6)])
    assert (splits.sum(axis=0) == 3).all()
    assert not (splits[0] == splits[2]).all()
    with pytest.raises(ConfigError, match="without it"):
        score_against_shadows(np.zeros(2), np.zeros((1, 2)), np.array([[True, False]]))


def test_people_whose_photographs_lie_close_score_higher():
    draw = torch.Generator().manual_seed(1)
    centers = F.normalize(torch.randn(30, 16, generator=draw), dim=1)
    people = torch.arange(30).repeat_interleave(4)
    spread = torch.where(people < 15, 0.1, 0.6)[:, None]
    scores, known = score_people(centers[people] + spread * torch.randn(120, 16, generator=draw), people)
    assert known.tolist() == list(range(30))
    assert Membership(scores[:15], scores[15:]).auc > 0.95


def face_network():
    with scoped_seed(3):
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8 * 8 * 8, 24)
        )


def smooth_faces(count, draw):
    """Smooth pictures of 16 x 16 pixels, one per person."""
    small = torch.rand(count, 1, 4, 4, generator=draw)
    return F.interpolate(small, size=(16, 16), mode="bilinear").clamp(0, 1)


def test_a_class_vector_gives_a_picture_back_and_a_random_one_does_not():
    """The rows are the network's features of people: templates that leak. Rows drawn at random say nothing."""
    draw = torch.Generator().manual_seed(2)
    network, people = face_network(), smooth_faces(30, draw)
    start = smooth_faces(200, draw).mean(dim=0)
    with torch.no_grad():
        rows = network(people)
    right = torch.arange(8)
    found = invert_rows(network, rows[:8], start, draw, steps=100)
    with torch.no_grad():
        assert F.cosine_similarity(network(found), rows[:8]).min() > 0.9
    assert share_beaten(rank_by_pixels(found, people, right), 30).mean() > 0.8
    useless = invert_rows(network, torch.randn(8, 24, generator=draw), start, draw, steps=100)
    assert 0.2 < share_beaten(rank_by_pixels(useless, people, right), 30).mean() < 0.8


def test_ranks_count_ties_half_and_ignore_brightness():
    assert rank_of(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([0])).tolist() == [1.5]
    draw = torch.Generator().manual_seed(3)
    people = smooth_faces(10, draw) * 0.5
    assert rank_by_pixels(people + 0.4, people, torch.arange(10)).tolist() == [1.0] * 10


def gradients_of(network, targets):
    params = dict(network.named_parameters())

    def gradient(inputs):
        loss = F.cross_entropy(network(inputs), targets)
        found = torch.autograd.grad(loss, list(params.values()), create_graph=True)
        return dict(zip(params, found, strict=True))

    return gradient


def test_an_example_is_read_off_a_dense_layer_exactly():
    with scoped_seed(1):
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    truth = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    sent = gradients_of(network, torch.tensor([2]))(truth)
    read = read_off_dense_layer({name: value.detach() for name, value in sent.items()}, 64)
    assert read is not None
    assert torch.allclose(read.view_as(truth), truth, atol=1e-5)
    assert read_off_dense_layer({"0.weight": torch.zeros(3, 64), "0.bias": torch.zeros(3)}, 64) is None
    assert read_off_dense_layer({"0.weight": torch.zeros(3, 8)}, 64) is None


def test_a_gradient_gives_its_picture_back_unless_it_is_noised():
    draw = torch.Generator().manual_seed(5)
    with scoped_seed(4):
        network = nn.Sequential(
            nn.Conv2d(1, 12, 5, stride=2, padding=2),
            nn.Tanh(),
            nn.Conv2d(12, 12, 5, padding=2),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(12 * 16, 10),
        )
    truth = smooth_faces(1, draw)[:, :, ::2, ::2].contiguous()
    gradient = gradients_of(network, torch.tensor([3]))
    sent = {name: value.detach() for name, value in gradient(truth).items()}
    flat = psnr(truth.mean().expand_as(truth), truth)[0]
    found = psnr(invert_gradient(gradient, sent, (1, 1, 8, 8), draw, steps=100), truth)[0]
    hidden = clip_and_noise(sent, clip=1.0, noise=1.0, draw=draw)
    noised = psnr(invert_gradient(gradient, hidden, (1, 1, 8, 8), draw, steps=100), truth)[0]
    assert found > flat + 5
    assert noised < flat + 1


def test_pictures_of_a_batch_are_compared_in_their_best_order():
    truth = torch.rand(4, 1, 3, 3, generator=torch.Generator().manual_seed(1))
    assert torch.equal(match_pictures(truth[[2, 0, 3, 1]], truth), truth)
    assert (psnr(truth, truth) == 60).all()


def test_a_clipped_upload_has_the_clip_norm():
    sent = {"a": torch.full((4,), 10.0), "b": torch.full((2, 2), -10.0)}
    found = clip_and_noise(sent, clip=0.5, noise=0.0, draw=generator(0, "none"))
    assert torch.cat([value.flatten() for value in found.values()]).norm().item() == pytest.approx(0.5)
    small = {"a": torch.full((4,), 0.01)}
    assert torch.equal(clip_and_noise(small, clip=0.5, noise=0.0, draw=generator(0, "none"))["a"], small["a"])


def scores_of(noise, releases, rate, broken=1.0):
    """Canaries through a private sum whose clip norm is `broken` times what it should be."""
    secret = Secret.from_seed(8)

    def mechanism(release, vectors):
        numbers = ClipAndNoise(clip=broken, noise=noise / broken, divisor=1.0, expected=1.0)
        total = PrivateSum(numbers, vectors.shape[1], secret, release)
        if len(vectors):
            total.add(vectors, [1.0] * len(vectors))
        return total.finish().total, noise

    return run_canaries(mechanism, releases, count=600, rate=rate)


@pytest.mark.parametrize(("noise", "releases", "rate", "delta"), [(8.0, 50, 1.0, 1e-5), (1.0, 40, 0.2, 1e-3)])
def test_canaries_measure_no_more_than_the_accountant_and_find_a_broken_clip(noise, releases, rate, delta):
    accounted = Mechanism(noise, rate).epsilon(releases, delta)
    right = judge_canaries(scores_of(noise, releases, rate), accounted, delta, "a client")
    assert right.violation is None
    measured = right.figures[1]
    assert measured.low < accounted * 1.15
    if rate == 1:  # without sampling the estimate is that of the mechanism itself
        assert measured.low < accounted < measured.high * 1.15
    broken = judge_canaries(scores_of(noise, releases, rate, broken=3.0), accounted, delta, "a client")
    assert broken.violation is not None
    assert "broken" in broken.violation


def test_the_one_run_bound_never_exceeds_what_the_guesses_allow():
    """Of a mechanism that answers right with probability e^eps / (1 + e^eps), the bound is above eps in 5 % at most."""
    draw, epsilon = np.random.default_rng(1), 1.5
    right = draw.binomial(100, 1 / (1 + np.exp(-epsilon)), 300)
    bounds = {count: one_run_epsilon(1000, 100, count, 0.0) for count in np.unique(right).tolist()}
    assert np.mean([bounds[count] > epsilon for count in right.tolist()]) <= 0.08
    assert one_run_epsilon(1000, 100, 100, 1e-5) > 3
    assert one_run_epsilon(1000, 100, 100, 1e-2) < one_run_epsilon(1000, 100, 100, 1e-5)


def test_canaries_that_were_not_used_show_no_privacy_loss():
    draw = np.random.default_rng(2)
    scores = CanaryScores(draw.normal(size=500), draw.normal(size=500))
    assert scores.one_run_bound(1e-5) == 0
    assert scores.interval(1e-5)[0] < 0.6


def test_a_leak_needs_to_be_above_chance_and_above_its_control():
    def finding(low, control=None):
        figure = AuditFigure("AUC", low + 0.05, low, low + 0.1, 0.5, 10)
        controls = () if control is None else (AuditFigure("AUC", control, 0.0, 1.0, 0.5, 10),)
        return Finding("photographs", "test", (figure,), controls, decisive="AUC")

    assert finding(0.55).leaks
    assert not finding(0.45).leaks
    assert not finding(0.55, control=0.6).leaks
    assert finding(0.55, control=0.5).leaks
