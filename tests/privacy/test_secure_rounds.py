import itertools
from dataclasses import replace

import numpy as np
import pytest
from secure_rounds import Round, random_vectors

from fedra.privacy.secure import secure_client as client
from fedra.privacy.secure.secure_messages import DeliveredShares, NeighborKeys, Roll, SecureRoundError, SignedRoll


def total_of(vectors, members):
    return sum((vectors[member] for member in members), np.zeros_like(next(iter(vectors.values()))))


@pytest.mark.parametrize("clients", [3, 4, 9, 20])
def test_the_sum_is_exact(clients):
    vectors = random_vectors(range(5, 5 + clients))
    answered, total = Round(vectors).run()
    assert len(answered) == clients
    assert (total == total_of(vectors, answered)).all()


@pytest.mark.parametrize("stage", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("member", range(6))
def test_a_member_may_drop_out_at_any_stage(member, stage):
    vectors = random_vectors(range(6))
    answered, total = Round(vectors, {member: stage}).run()
    assert (member in answered) == (stage > 3)
    assert (total == total_of(vectors, answered)).all()


@pytest.mark.parametrize("stages", list(itertools.product((1, 3, 5), repeat=2)))
def test_below_the_threshold_nothing_is_learned(stages):
    with pytest.raises(SecureRoundError, match="at least 5 of client"):
        Round(random_vectors(range(6)), dict(zip((1, 4), stages, strict=True))).run()


def test_a_sparse_graph_gives_the_exact_sum_with_drop_outs():
    vectors = random_vectors(range(40))
    answered, total = Round(vectors, {3: 3, 17: 3, 30: 5}, degree=14).run()
    assert len(answered) == 38
    assert (total == total_of(vectors, answered)).all()


def test_masked_vectors_look_random_and_differ_between_rounds():
    vectors = {member: np.zeros(20_000, dtype=np.uint32) for member in range(4)}
    first, second = Round(vectors), Round(vectors)
    first.run(), second.run()
    masked = first.masked[2]
    assert (masked != second.masked[2]).mean() > 0.999
    counts = np.bincount(masked.view(np.uint8), minlength=256)
    expected = len(masked) * 4 / 256
    assert ((counts - expected) ** 2 / expected).sum() < 370  # chi-square with 255 degrees: 1e-5 lies at 358


def test_secrets_are_forgotten_and_in_no_text():
    one = Round(random_vectors(range(4)))
    secret = {}
    keys = one.join()
    for member, state in one.states.items():
        secret[member] = [state.seed, state.mask_key, state.share_key]
        for value in secret[member]:
            assert repr(value) not in repr(state)
    one.reveal(one.sign_roll(one.mask(one.share(keys))))
    for state in one.states.values():
        assert (state.seed, state.mask_key, state.share_key, state.shares) == (b"", b"", b"", {})


class TestTermsThatAClientRefuses:
    def join(self, seen=(), layout="layout", mechanism="plain", **changes):
        one = Round(random_vectors(range(4)))
        terms = replace(one.server.announcement, **changes)
        return client.join_round(1, terms, layout, mechanism, seen, one.sign(1))

    def test_acceptable_terms(self):
        self.join()

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"members": (1, 2)}, "at least 3 members, got 2"),
            ({"members": (0, 2, 3)}, "must be a member"),
            ({"members": (1, 1, 2, 3)}, "different and in order"),
            ({"threshold": 0.4}, "between 0.5 and 1"),
            ({"round_name": b"short"}, "16 bytes"),
            ({"layout": "other"}, "agree on the layout"),
            ({"mechanism": "clip 9"}, "agree on clip and noise"),
        ],
    )
    def test_refused(self, changes, sentence):
        with pytest.raises(SecureRoundError, match=sentence):
            self.join(**changes)

    def test_a_round_that_was_seen_before(self):
        one = Round(random_vectors(range(4)))
        name = one.server.announcement.round_name
        with pytest.raises(SecureRoundError, match="must be new"):
            client.join_round(1, one.server.announcement, "layout", "plain", {name}, one.sign(1))


class TestKeysThatAClientRefuses:
    def share(self, change):
        one = Round(random_vectors(range(4)))
        keys = dict(one.join()[1].keys)
        return client.share_secrets(one.states[1], NeighborKeys(change(keys, one)), one.verify)

    def test_unsigned(self):
        with pytest.raises(SecureRoundError, match="must carry its signature"):
            self.share(lambda keys, one: {**keys, 0: replace(keys[0], signature=bytes(64))})

    def test_swapped_by_the_server(self):
        with pytest.raises(SecureRoundError, match="must carry its signature"):
            self.share(lambda keys, one: {**keys, 0: keys[2]})

    def test_signed_under_other_terms(self):
        def other_terms(keys, one):
            terms = replace(one.server.announcement, members=(0, 1, 2))
            _, signed = client.join_round(0, terms, "layout", "plain", set(), one.sign(0))
            return {**keys, 0: signed}

        with pytest.raises(SecureRoundError, match="under the terms of this round"):
            self.share(other_terms)

    def test_of_a_member_that_is_no_neighbor(self):
        with pytest.raises(SecureRoundError, match="must come from neighbors"):
            self.share(lambda keys, one: {**keys, 1: keys[0]})

    def test_too_few(self):
        with pytest.raises(SecureRoundError, match="at least 3 of client 1"):
            self.share(lambda keys, one: {0: keys[0]})


class TestSharesThatAClientRefuses:
    def mask(self, change):
        one = Round(random_vectors(range(4)))
        boxes = one.share(one.join())
        return client.mask_vector(one.states[1], DeliveredShares(change(boxes)), one.vectors[1])

    def test_altered(self):
        with pytest.raises(SecureRoundError, match="were altered"):
            self.mask(lambda all_boxes: {**all_boxes[1].boxes, 0: bytes(82)})

    def test_swapped(self):
        def swap(all_boxes):
            boxes = dict(all_boxes[1].boxes)
            return {**boxes, 0: boxes[2], 2: boxes[0]}

        with pytest.raises(SecureRoundError, match="were altered"):
            self.mask(swap)

    def test_meant_for_another_member(self):
        with pytest.raises(SecureRoundError, match="were altered"):
            self.mask(lambda all_boxes: {**all_boxes[1].boxes, 0: all_boxes[2].boxes[0]})


class TestRollsThatAClientRefuses:
    def masked(self):
        one = Round(random_vectors(range(5)))
        one.mask(one.share(one.join()))
        return one

    @pytest.mark.parametrize(
        ("answered", "dropped", "sentence"),
        [
            ((0, 1, 2, 3, 4), (2,), "both secrets would be revealed"),
            ((0, 2, 3, 4), (1,), "must be among those who answered"),
            ((0, 1, 2, 3, 9), (), "members of the round only"),
            ((0, 1), (2, 3, 4), "at least 3 answers, got 2"),
            ((0, 1, 2), (3, 4), "at least 4 of client 1"),
        ],
    )
    def test_contradictory(self, answered, dropped, sentence):
        one = self.masked()
        with pytest.raises(SecureRoundError, match=sentence):
            client.sign_roll(one.states[1], Roll(answered, dropped), one.sign(1))

    def test_another_roll_than_the_signed_one(self):
        one = self.masked()
        signed = one.sign_roll(one.server.call_roll())
        other = SignedRoll(Roll((0, 1, 2, 3), (4,)), signed.signatures)
        with pytest.raises(SecureRoundError, match="the one that this client signed"):
            client.reveal_shares(one.states[1], other, one.verify)

    def test_different_rolls_shown_to_different_members(self):
        one = self.masked()
        first, second = Roll((0, 1, 2, 3, 4), ()), Roll((0, 1, 2, 3), (4,))
        signatures = {}
        for member, roll in ((0, first), (1, first), (2, second), (3, second)):
            one.states[member], signatures[member] = client.sign_roll(one.states[member], roll, one.sign(member))
        with pytest.raises(SecureRoundError, match="every signature of a roll"):
            client.reveal_shares(one.states[0], SignedRoll(first, signatures), one.verify)
        with pytest.raises(SecureRoundError, match="at least 4 of client 0"):
            client.reveal_shares(one.states[0], SignedRoll(first, {k: signatures[k] for k in (0, 1)}), one.verify)

    def test_asked_twice(self):
        one = self.masked()
        signed = one.sign_roll(one.server.call_roll())
        state, _ = client.reveal_shares(one.states[1], signed, one.verify)
        with pytest.raises(SecureRoundError, match="asked once and in order"):
            client.reveal_shares(state, signed, one.verify)


def test_a_server_takes_one_vector_of_the_right_kind_from_each_member():
    one = Round(random_vectors(range(4)))
    one.mask(one.share(one.join()))
    with pytest.raises(SecureRoundError, match="must send its vector once"):
        one.server.add_masked(1, one.masked[1])
    two = Round(random_vectors(range(4)))
    two.share(two.join())
    with pytest.raises(SecureRoundError, match="40 numbers of type uint32"):
        two.server.add_masked(1, np.zeros(40, dtype=np.int64))


def test_a_wrong_share_is_noticed():
    one = Round(random_vectors(range(4)), {3: 3})
    one.reveal(one.sign_roll(one.mask(one.share(one.join()))))
    held = one.server.revealed[0]
    one.server.revealed[0] = replace(held, mask_keys={3: bytes(33)})
    with pytest.raises((SecureRoundError, Exception), match=r"must fit"):
        one.server.finish()
