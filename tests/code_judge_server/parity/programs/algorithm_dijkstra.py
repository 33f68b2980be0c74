import heapq, sys
from collections import defaultdict
def main():
    data = iter(sys.stdin.read().split())
    n, m = int(next(data)), int(next(data))
    graph = defaultdict(list)
    for _ in range(m):
        a, b, w = (int(next(data)) for _ in range(3))
        graph[a].append((b, w))
    best, heap = {}, [(0, 1)]
    while heap:
        d, u = heapq.heappop(heap)
        if u in best: continue
        best[u] = d
        for v, w in graph[u]: heapq.heappush(heap, (d + w, v))
    print(best)
main()
