import sys

sys.stdout = None
print("nothing happens")
sys.stderr = None
raise ValueError("unseen")
