words = "the quick brown fox jumps over the lazy dog".split()
print(set(words), frozenset(words), {word: hash(word) % 97 for word in words})
