import pickle

from ray.cloudpickle.cloudpickle import dumps

from agentrl.types import Deadline


def test_a_deadline_crosses_processes_as_the_seconds_that_remain():
    assert 9.0 < pickle.loads(pickle.dumps(Deadline.after(10.0))).remaining_s() <= 10.0


def test_a_deadline_is_sent_by_name_and_not_as_code():
    sent = dumps(Deadline.after(10.0))
    assert len(sent) < 200, "one goes along with every turn"
