import argparse
parser = argparse.ArgumentParser(description="Adds.")
parser.add_argument("numbers", type=int, nargs="*", default=[1, 2])
parser.add_argument("--verbose", action="store_true")
print(parser.parse_args([]), sum(parser.parse_args(["3", "4", "--verbose"]).numbers))
parser.print_help()
parser.parse_args(["x"])
