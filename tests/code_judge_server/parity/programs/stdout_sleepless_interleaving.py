import sys
for n in range(3):
    print("out", n, flush=True)
    print("err", n, file=sys.stderr)
