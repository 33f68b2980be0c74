import io, sys

sys.stdout = io.StringIO()
print("kept in memory")
sys.stderr.write(sys.stdout.getvalue())
