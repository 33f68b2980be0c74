import os, sys
os._exit = lambda code: print("not ended by", code)
sys.exit = lambda code=0: print("not ended by", code)
os.kill = os.abort = sys.exit
print("once")
