import mmap

from agentrl.observability.peak_memory import take_peak_memory

SIZE = 256 * 2**20


def test_what_was_given_back_counts_for_the_phase_in_which_it_was_held_and_for_no_other():
    take_peak_memory()  # whatever ran before in this process
    before = take_peak_memory()
    memory = mmap.mmap(-1, SIZE)
    for page in range(0, SIZE, mmap.PAGESIZE):
        memory[page] = 1
    memory.close()
    during, after = take_peak_memory(), take_peak_memory()
    assert during > SIZE
    assert after < during - SIZE / 2
    assert before < during
