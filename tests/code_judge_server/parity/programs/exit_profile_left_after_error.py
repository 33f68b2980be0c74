import sys
sys.setprofile(lambda frame, event, argument: None)
print("begin")
int("no number")
