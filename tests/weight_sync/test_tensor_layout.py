import zlib

import torch

from agentrl.weight_sync.tensor_layout import checksum_of, lay_out, size_of, split_into_buckets, view_of

FORMS = {
    "matrix": (torch.Size([3, 5]), torch.float32),
    "half": (torch.Size([7]), torch.bfloat16),
    "scalar": (torch.Size([]), torch.float32),
    "empty": (torch.Size([0, 4]), torch.float32),
    "long": (torch.Size([40]), torch.int64),
}


def test_tensors_are_aligned_to_cache_lines():
    specs = lay_out(FORMS)
    assert [spec.offset_bytes for spec in specs] == [0, 64, 128, 192, 192]
    assert size_of(specs) == 192 + 320
    octets = torch.zeros(size_of(specs), dtype=torch.uint8)
    for spec, (shape, dtype) in zip(specs, FORMS.values(), strict=True):
        view = view_of(spec, octets)
        assert (view.shape, view.dtype) == (shape, dtype)
        view.fill_(1)
    assert octets.view(torch.int64)[24:].tolist() == [1] * 40


def test_buckets_hold_all_tensors_in_order_within_the_limit():
    buckets = split_into_buckets(lay_out(FORMS), 200)
    assert [[spec.name for spec in bucket] for bucket in buckets] == [["matrix", "half", "scalar", "empty"], ["long"]]
    assert all(bucket[0].offset_bytes == 0 for bucket in buckets)
    assert [size_of(bucket) for bucket in buckets] == [192, 320], "a tensor larger than a bucket gets its own"


def test_the_checksum_does_not_depend_on_the_memory_layout():
    matrix = torch.arange(12.0).view(3, 4)
    assert checksum_of(matrix.t()) == zlib.crc32(matrix.t().contiguous().numpy().tobytes()) != checksum_of(matrix)
    assert checksum_of(torch.zeros(0)) == 0
