import sys
sys.stdout.buffer.write(bytes(range(256)))
sys.stdout.buffer.flush()
sys.stdout.write("then text")
