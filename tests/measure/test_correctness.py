"""Comparison, poison and checksums on small tensors with answers worked out by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from measuring import DEFINITION, MISBEHAVIOURS  # noqa: E402

from kernelderby.catalog import Catalog, Tolerance  # noqa: E402
from kernelderby.measure.clock.timing import WallTimer  # noqa: E402
from kernelderby.measure.judge import checksums, correctness  # noqa: E402
from kernelderby.measure.judge.cases import Case  # noqa: E402
from kernelderby.measure.judge.checksums import checksum  # noqa: E402
from kernelderby.measure.judge.correctness import compare, make_ready, still_poisoned  # noqa: E402
from kernelderby.measure.judge.definition import load_definition_module  # noqa: E402
from kernelderby.measure.judge.inputs import InputMaker  # noqa: E402
from kernelderby.measure.worker.candidate import Candidate  # noqa: E402
from kernelderby.measure.worker.executor import local_check, local_race  # noqa: E402
from kernelderby.rows.measurement import Status  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def definition():
    return Catalog.open(MISBEHAVIOURS).definition(DEFINITION)


def with_tolerances(definition, *tolerances):
    named = tuple(Tolerance(f"t{i}", *numbers, "") for i, numbers in enumerate(tolerances))
    return replace(definition, tolerances=named)


def judged(definition, output, reference):
    return compare(definition, {"out": torch.tensor(output)}, {"out": torch.tensor(reference)})


def test_an_element_fails_only_beyond_both_bounds(definition):
    one = with_tolerances(definition, (1.0, 0.1, 0.5))
    # errors: 0.5 of 1 (within atol), 5 of 100 (within rtol), 20 of 100 (neither), 0
    verdict = judged(one, [1.5, 105.0, 120.0, 7.0], [1.0, 100.0, 100.0, 7.0])
    assert verdict.status is Status.PASSED
    assert verdict.correctness.matched_ratio == {"t0": 0.75}
    assert verdict.correctness.max_absolute_error == 20.0
    assert verdict.correctness.max_relative_error == pytest.approx(0.5, rel=1e-5)
    assert verdict.correctness.relative_error_norm == pytest.approx((425.25 / 20050.0) ** 0.5, rel=1e-5)


def test_every_tolerance_must_hold(definition):
    both = with_tolerances(definition, (1.0, 0.1, 0.5), (0.1, 0.01, 0.9))
    verdict = judged(both, [1.5, 7.0, 7.0, 7.0] * 500, [1.0, 7.0, 7.0, 7.0] * 500)
    assert verdict.status is Status.WRONG_VALUES
    assert verdict.message == "t1: 500 of 2,000 elements are wrong, 260 may be (of many 10 %)"


def test_of_few_elements_chance_takes_more(definition):
    """16 elements at 0.9: 1.6 and 4.5 x 1.2 = 5.4 more, 7 in all; of two at most one; at a ratio of 1 none."""
    one = with_tolerances(definition, (0.1, 0.01, 0.9))
    right = [7.0] * 16
    assert judged(one, [8.0] * 7 + right[7:], right).status is Status.PASSED
    verdict = judged(one, [8.0] * 8 + right[8:], right)
    assert verdict.status is Status.WRONG_VALUES
    assert verdict.message == "t0: 8 of 16 elements are wrong, 7 may be (of many 10 %)"
    assert judged(one, [8.0, 7.0], [7.0, 7.0]).status is Status.PASSED
    assert judged(one, [8.0, 8.0], [7.0, 7.0]).status is Status.WRONG_VALUES
    all_of_them = with_tolerances(definition, (0.1, 0.01, 1.0))
    verdict = judged(all_of_them, [8.0, *right[1:]], right)
    assert verdict.message == "t0: 1 of 16 elements are wrong, 0 may be"
    half = with_tolerances(definition, (0.1, 0.01, 0.5))
    assert judged(half, [8.0, 8.0, 7.0, 7.0], [7.0] * 4).status is Status.PASSED
    assert judged(half, [8.0, 8.0, 8.0, 7.0], [7.0] * 4).status is Status.WRONG_VALUES
    many = [7.0] * 10_000  # 1,000 and 4.5 x 30 more
    assert judged(one, [8.0] * 1135 + many[1135:], many).status is Status.PASSED
    assert judged(one, [8.0] * 1136 + many[1136:], many).status is Status.WRONG_VALUES


def test_a_tolerance_may_be_for_one_output(definition):
    """The scale is off by a tenth, one element of five: a bound for all outputs at a ratio of 0.8 would not see it."""
    two = replace(
        definition,
        outputs={"codes": None, "scale": None},
        tolerances=(
            Tolerance("codes", 1.0, 0.0, 1.0, "", ("codes",)),
            Tolerance("scale", 0.0, 0.05, 1.0, "", ("scale",)),
        ),
    )
    verdict = compare(
        two,
        {"codes": torch.tensor([1.0, 2.0, 3.0, 5.0]), "scale": torch.tensor([1.1])},
        {"codes": torch.tensor([1.0, 2.0, 3.0, 4.0]), "scale": torch.tensor([1.0])},
    )
    assert verdict.correctness.matched_ratio == {"codes": 1.0, "scale": 0.0}
    assert verdict.status is Status.WRONG_VALUES and verdict.message.startswith("scale: 1 of 1 ")


def test_nan_and_infinity(definition):
    lenient = with_tolerances(definition, (1e9, 1.0, 0.0))
    nan, inf = float("nan"), float("inf")
    assert judged(lenient, [nan, 1.0], [1.0, 1.0]).status is Status.NOT_A_NUMBER
    assert judged(lenient, [inf, 1.0], [1.0, 1.0]).status is Status.NOT_A_NUMBER
    assert judged(lenient, [nan, inf, -inf], [nan, inf, -inf]).correctness.max_absolute_error == 0.0
    strict = with_tolerances(definition, (1.0, 1.0, 1.0))
    assert judged(strict, [1.0], [nan]).status is Status.WRONG_VALUES
    assert judged(strict, [inf], [-inf]).status is Status.WRONG_VALUES


def test_no_elements_are_right(definition):
    verdict = compare(definition, {"out": torch.empty(0, 16)}, {"out": torch.empty(0, 16)})
    assert verdict.status is Status.PASSED and verdict.correctness.matched_ratio == {"tight": 1.0}


def test_chunks_add_up(definition, monkeypatch):
    torch.manual_seed(0)
    reference = torch.randn(1000)
    output = reference + 1e-5 * torch.randn(1000)
    whole = compare(definition, {"out": output}, {"out": reference}).correctness
    monkeypatch.setattr(correctness, "CHUNK", 64)
    assert compare(definition, {"out": output}, {"out": reference}).correctness.matched_ratio == whole.matched_ratio


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_a_checksum_is_that_of_its_chunks(dtype, monkeypatch):
    monkeypatch.setattr(checksums, "CHUNK", 48)
    tensor = torch.randint(0, 100, (1000,)).to(dtype)
    (whole,) = checksum({"x": tensor}).values()
    words, numbers = tensor.view(torch.int32).tolist(), checksums._odd_numbers(48, tensor.device).tolist()
    factors = [numbers[i % 48] * checksums._of_chunk(i // 48) for i in range(len(words))]
    assert all(factor % 2 for factor in factors) and len(set(factors)) == len(factors)
    assert whole == sum(word * factor for word, factor in zip(words, factors, strict=True)) % (1 << 64)


def test_a_change_that_another_one_makes_up_for_is_seen():
    """By the sum of words times odd numbers in a row, which everybody can solve for one word."""
    words = torch.arange(64)
    changed = words.clone()
    changed[3] += 2 * 9 + 1
    changed[9] -= 2 * 3 + 1
    assert sum(w * (2 * i + 1) for i, w in enumerate((changed - words).tolist())) == 0
    assert checksum({"x": changed}) != checksum({"x": words})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_changes_of_the_highest_bits_do_not_make_up_for_each_other(dtype):
    """Twice 2^63 is nothing modulo 2^64, whatever odd number it is times."""
    tensor = torch.arange(1, 65).to(dtype)
    for one in range(8):
        changed = tensor.clone()
        changed[one] *= -1
        changed[one + 48] *= -1
        assert checksum({"x": changed}) != checksum({"x": tensor})


def test_a_checksum_is_of_the_contents_wherever_they_lie():
    held = torch.arange(100, dtype=torch.uint8)
    for size in (64, 60, 61):
        (there,) = checksum({"x": held[3 : 3 + size]}).values()
        assert checksum({"x": held[3 : 3 + size].clone()}) == {"x": there}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int32, torch.bool])
def test_a_checksum_sees_a_swap_and_a_single_bit(dtype):
    tensor = (torch.arange(24).view(2, 12) % 2).to(dtype)
    before = checksum({"x": tensor, "n": 3})
    swapped = ((torch.arange(24).view(2, 12) + 1) % 2).to(dtype)
    assert checksum({"x": swapped}) != before
    assert checksum({"x": tensor.clone()}) == before
    changed = tensor.clone()
    changed.view(-1).view(torch.uint8)[-1] ^= 1
    assert checksum({"x": changed}) != before


def test_a_checksum_takes_odd_sizes_and_nothing():
    three = torch.ones(3, dtype=torch.uint8)
    numbers = checksums._odd_numbers(3, three.device).tolist()
    assert checksum({"x": three}) == {"x": sum(numbers) * checksums._of_chunk(0) % (1 << 64)}
    assert checksum({"x": torch.empty(0, 7)}) == {"x": 0}


def test_a_boolean_that_is_not_written_is_true_in_one_round_and_false_in_the_other():
    """Otherwise a solution that writes the False ones alone would pass."""
    out, seen = torch.zeros(3, dtype=torch.bool), []
    for byte in correctness.POISON:
        make_ready({}, {"out": out}, {}, byte)
        seen.append(out.view(torch.uint8).tolist())
    assert seen == [[1, 1, 1], [0, 0, 0]]


def test_large_integers_are_compared_exactly(definition):
    exact = with_tolerances(definition, (0.0, 0.0, 1.0))
    verdict = judged(exact, [2**60 + 1, -(2**63), 5], [2**60, 2**63 - 1, 5])
    assert verdict.status is Status.WRONG_VALUES and verdict.message.startswith("t0: 2 of 3 elements")
    assert judged(exact, [2**60 + 1, -(2**63)], [2**60 + 1, -(2**63)]).status is Status.PASSED


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8])
def test_poison_is_found_where_nothing_was_written(dtype):
    out = torch.empty(4, 4).to(dtype)
    make_ready({}, {"out": out}, {}, 0xFF)
    out.view(-1)[5] = 1
    assert (~still_poisoned(out, 0xFF)).nonzero().tolist() == [[5]]
    assert not still_poisoned(out, 0x7F).any()


class TestTwoRounds:
    """The check with entry points written here."""

    @staticmethod
    def status(definition, function, destination_passing_style=True, rows=3):
        module = SimpleNamespace(
            run=lambda x, y, factor: x + factor * y,
            generate_inputs=lambda values, device: {
                "y": torch.randn(values["rows"], 16, generator=torch.Generator().manual_seed(values["seed"]))
            },
        )
        maker = InputMaker(definition, module, Case("", {"rows": rows, "columns": 16}, {"factor": 2.0}, 5), CPU, None)
        return local_check(Candidate(function, destination_passing_style, definition), module, maker).status

    def test_right_outputs_pass_in_every_calling_style(self, definition):
        assert self.status(definition, lambda x, y, f, out: out.copy_(x + f * y)) is Status.PASSED
        assert self.status(definition, lambda x, y, f: x + f * y, False) is Status.PASSED
        assert self.status(definition, lambda x, y, f: {"out": x + f * y}, False) is Status.PASSED

    def test_a_call_without_rows_passes(self, definition):
        assert self.status(definition, lambda x, y, f, out: None, rows=0) is Status.PASSED

    def test_one_element_unwritten(self, definition):
        assert (
            self.status(definition, lambda x, y, f, out: out.view(-1)[1:].copy_((x + f * y).view(-1)[1:]))
            is Status.UNWRITTEN
        )

    @pytest.mark.parametrize("dtype", ["int8", "uint8"])
    def test_bytes_that_are_once_the_one_poison_and_once_the_other_were_written(self, definition, dtype):
        """As in an honest quantisation: -1 and 127 are among its most frequent values."""
        definition = replace(definition, outputs={"out": replace(definition.outputs["out"], dtype=dtype)})

        def quantised(x, y, factor):
            found = x + factor * y
            return (found / found.abs().amax(1, keepdim=True) * 127).nan_to_num(0).round().to(torch.int8)

        module = SimpleNamespace(
            run=lambda *given: quantised(*given).view(getattr(torch, dtype)),
            generate_inputs=lambda values, device: {"y": torch.zeros(values["rows"], 16)},
        )
        maker = InputMaker(definition, module, Case("", {"rows": 2048, "columns": 16}, {"factor": 2.0}, 5), CPU, None)

        def status(left_out):
            def run(x, y, factor, out):
                out.view(torch.int8).view(-1)[left_out:].copy_(quantised(x, y, factor).view(-1)[left_out:])

            return local_check(Candidate(run, True, definition), module, maker).status

        assert status(0) is Status.PASSED and status(1) is Status.UNWRITTEN

    def test_two_outputs_for_one(self, definition):
        assert self.status(definition, lambda x, y, f: (x, y), False) is Status.WRONG_SHAPE

    def test_a_missing_output_is_a_wrong_dtype(self, definition):
        assert self.status(definition, lambda x, y, f: None, False) is Status.WRONG_DTYPE

    def test_an_output_resized_in_place(self, definition):
        assert self.status(definition, lambda x, y, f, out: out.resize_(2, 2)) is Status.WRONG_SHAPE

    def test_a_cached_answer_of_the_first_call(self, definition):
        cache = []
        assert (
            self.status(definition, lambda x, y, f, out: out.copy_((cache.append(x + f * y) or cache)[0]))
            is Status.STALE_OUTPUT
        )

    def test_a_cached_input_by_address(self, definition):
        cache = {}
        assert (
            self.status(definition, lambda x, y, f, out: out.copy_(x + f * cache.setdefault(y.data_ptr(), y.clone())))
            is Status.STALE_OUTPUT
        )

    def test_wrong_in_the_second_round_wherever_it_lies_is_wrong_and_not_stale(self, definition):
        def run(x, y, factor, out):
            out.copy_(x + factor * y + (calls.append(0) or len(calls) > 1))

        calls = []
        assert self.status(definition, run) is Status.WRONG_VALUES


class TestCanonicalOutputs:
    """The check and a timed turn where a definition has canonical_outputs: moe_count_and_sort, whose pairs may stand in
    any order within their expert."""

    @pytest.fixture(scope="class")
    @staticmethod
    def counting(checkout):
        definition = Catalog.open(checkout).definition("moe_count_and_sort")
        return definition, load_definition_module(definition)

    @staticmethod
    def grouped(spoil=lambda order, counts, offsets: None):
        """Sorts in another order at each call, as atomics do, then lets `spoil` change the outputs in place."""
        calls = torch.Generator().manual_seed(7)

        def run(topk_ids, sorted_pairs, expert_counts, expert_offsets):
            experts = topk_ids.flatten().long()
            chance = torch.rand(experts.numel(), generator=calls)
            order = (experts + 0.99 * chance.double()).argsort()
            counts = torch.bincount(experts, minlength=128)
            sorted_pairs.copy_(order.view(sorted_pairs.shape))
            expert_counts.copy_(counts)
            expert_offsets.copy_(torch.nn.functional.pad(counts.cumsum(0), (1, 0)))
            spoil(sorted_pairs.view(-1), expert_counts, expert_offsets)

        return run

    @staticmethod
    def parts(counting, function):
        definition, module = counting
        maker = InputMaker(definition, module, Case("", definition.sizes({"num_tokens": 70}), {}, 5), CPU, None)
        return Candidate(function, True, definition), module, maker

    def test_another_order_at_each_call_passes(self, counting):
        orders = []
        function = self.grouped(lambda order, counts, offsets: orders.append(order.clone()))
        assert local_check(*self.parts(counting, function)).status is Status.PASSED
        turn = local_race(*self.parts(counting, function), WallTimer()).turn(1, 2)
        assert turn.verdict.status is Status.PASSED and len(turn.eager.spans_us) == 2
        assert not torch.equal(orders[-1], orders[-3])  # of the same inputs

    def test_without_it_the_order_counts(self, counting):
        definition, module = counting
        plain = SimpleNamespace(run=module.run, generate_inputs=module.generate_inputs)
        assert local_check(*self.parts((definition, plain), self.grouped())).status is Status.WRONG_VALUES

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda order, counts, offsets: order[:1].copy_(order[1]),
            lambda order, counts, offsets: order[:1].fill_(order.numel()),
            lambda order, counts, offsets: order.copy_(order.roll(300)),
            lambda order, counts, offsets: counts[:1].add_(1),
            lambda order, counts, offsets: offsets[-1:].sub_(1),
            lambda order, counts, offsets: order.random_(-(2**31), 2**31 - 1),
            lambda order, counts, offsets: (order.fill_(-(2**31)), counts.fill_(2**31 - 1), offsets.fill_(-(2**31))),
        ],
        ids=["pair twice", "pair missing", "wrong expert", "wrong count", "wrong offset", "garbage", "extremes"],
    )
    def test_mistakes_in_the_grouping_fail_in_check_and_race(self, counting, spoil):
        assert local_check(*self.parts(counting, self.grouped(spoil))).status is Status.WRONG_VALUES
        turn = local_race(*self.parts(counting, self.grouped(spoil)), WallTimer()).turn(1, 2)
        assert turn.verdict.status is Status.WRONG_VALUES and not turn.eager.spans_us

    def test_unwritten_elements_are_looked_for_before(self, counting):
        def leaves_one(topk_ids, sorted_pairs, expert_counts, expert_offsets):
            first = sorted_pairs.view(-1)[0].clone()
            self.grouped()(topk_ids, sorted_pairs, expert_counts, expert_offsets)
            sorted_pairs.view(-1)[0] = first

        assert local_check(*self.parts(counting, leaves_one)).status is Status.UNWRITTEN

    def test_a_cached_answer_is_stale(self, counting):
        cache = []

        def cached(topk_ids, *outputs):
            if not cache:
                self.grouped()(topk_ids, *outputs)
                cache.extend(tensor.clone() for tensor in outputs)
            for tensor, kept in zip(outputs, cache, strict=True):
                tensor.copy_(kept)

        assert local_check(*self.parts(counting, cached)).status is Status.STALE_OUTPUT
