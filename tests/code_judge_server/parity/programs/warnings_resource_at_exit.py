import warnings

warnings.simplefilter("always")
handle = open("/etc/passwd")
print("still open")
