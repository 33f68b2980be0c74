import sys
print("lone \udc80 escape")
sys.stdout.flush()
print("lone \ud800 fails")
