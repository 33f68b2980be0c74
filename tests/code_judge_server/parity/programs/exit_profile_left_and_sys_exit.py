import sys
sys.setprofile(lambda frame, event, argument: None)
print("begin")
sys.exit(3)
