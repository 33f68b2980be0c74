from multiprocessing import shared_memory
memory = shared_memory.SharedMemory(create=True, size=16)
memory.buf[:3] = b"abc"
again = shared_memory.SharedMemory(memory.name)
print(bytes(again.buf[:3]))
again.close()
memory.close()
memory.unlink()
