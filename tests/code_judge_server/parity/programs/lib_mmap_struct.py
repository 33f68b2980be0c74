import mmap, struct
with mmap.mmap(-1, 4096) as area:
    area[:4] = struct.pack("<I", 0xDEADBEEF)
    print(area[:4], struct.unpack("<HH", area[:4]), struct.calcsize("@bi"))
print(memoryview(b"abcdef")[1:4].tobytes(), bytes.fromhex("00ff"), int.from_bytes(b"\x01\x00", "big"), (1000).to_bytes(2, "little"))
struct.unpack("I", b"abc")
