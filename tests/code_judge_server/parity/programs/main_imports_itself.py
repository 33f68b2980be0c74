import sys

print("running as", __name__)
if __name__ == "__main__":
    import main

    print(main.__name__, main.__file__, main is sys.modules["__main__"])
