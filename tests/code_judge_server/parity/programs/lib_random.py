import random
random.seed(12345)
print(random.random(), random.randint(1, 100), random.choice("abc"), random.sample(range(100), 5), random.gauss(0, 1))
items = list(range(10)); random.shuffle(items); print(items)
print(random.Random("text").random(), random.choices([1, 2], weights=[9, 1], k=5), random.getrandbits(70))
