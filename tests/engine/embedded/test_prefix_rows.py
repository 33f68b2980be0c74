import numpy as np

from agentrl.engine.embedded.prefix_rows import Placement, PrefixRows

PROMPT = np.arange(100, 150, dtype=np.int32)


def rows_with(*prompts: np.ndarray, num_rows: int = 3) -> PrefixRows:
    """Rows 0, 1, ... run these prompts, all computed."""
    rows = PrefixRows(num_rows=num_rows, max_tokens=200)
    for row, prompt in enumerate(prompts):
        placement = rows.place(prompt)
        assert placement is not None
        assert placement.row == row
        rows.num_computed[row] = len(prompt)
    return rows


def test_a_new_prompt_gets_a_free_row_with_nothing_cached() -> None:
    rows = rows_with(PROMPT)
    assert rows.place(np.arange(10, dtype=np.int32)) == Placement(row=1, source=1, num_cached=0)


def test_the_next_turn_takes_over_the_parked_row_of_the_last() -> None:
    rows = rows_with(PROMPT[:20], PROMPT[:30])
    rows.release(0)
    rows.release(1)
    assert rows.place(PROMPT) == Placement(row=1, source=1, num_cached=30)


def test_a_sample_of_the_same_prompt_copies_all_but_its_last_token() -> None:
    rows = rows_with(PROMPT)
    assert rows.place(PROMPT) == Placement(row=1, source=0, num_cached=49)


def test_a_parked_row_with_another_tail_is_copied_not_destroyed() -> None:
    rows = rows_with(PROMPT)
    rows.append(0, 7)
    rows.num_computed[0] += 1
    rows.release(0)
    assert rows.place(np.append(PROMPT, np.int32(8))) == Placement(row=1, source=0, num_cached=50)


def test_the_least_recently_parked_row_is_evicted() -> None:
    rows = rows_with(PROMPT, PROMPT + 100, PROMPT + 200)
    for row in (1, 0, 2):
        rows.release(row)
    placement = rows.place(np.arange(10, dtype=np.int32))
    assert placement is not None
    assert placement.row == 1
    assert placement.num_cached == 0


def test_no_row_while_all_run() -> None:
    assert rows_with(PROMPT, PROMPT + 100, PROMPT + 200).place(PROMPT) is None


def test_a_prompt_waits_for_a_neighbour_that_is_computing_the_same_prefix() -> None:
    rows = rows_with(PROMPT)
    rows.num_computed[0] = 0
    assert rows.place(PROMPT) is None
    rows.num_computed[0] = 50
    assert rows.place(PROMPT) is not None


def test_what_old_weights_have_computed_is_never_matched() -> None:
    rows = rows_with(PROMPT, PROMPT + 100)
    rows.release(1)
    rows.invalidate()
    assert rows.place(PROMPT + 100) == Placement(row=1, source=1, num_cached=0)
    assert rows.num_computed[0] == 0


def test_a_running_row_is_matched_again_once_new_weights_have_computed_it() -> None:
    rows = rows_with(PROMPT)
    rows.invalidate()
    assert rows.place(PROMPT) is None
    rows.num_computed[0] = 50
    assert rows.place(PROMPT) == Placement(row=1, source=0, num_cached=49)
