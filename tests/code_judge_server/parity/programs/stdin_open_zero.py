print([line.split() for line in open(0)])
