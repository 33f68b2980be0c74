import sys

raw = sys.stdout.detach()
raw.write(b"bytes\n")
raw.flush()
