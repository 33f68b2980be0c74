import warnings

warnings.simplefilter("always")


def leak():
    open("/etc/passwd")


leak()
print("done")
