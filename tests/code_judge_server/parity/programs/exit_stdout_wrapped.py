import io, sys

sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="latin-1", errors="replace")
print("latin é €")
