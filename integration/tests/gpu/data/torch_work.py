"""What gpu-test runs with PyTorch: fill the memory, train a small model, replay a graph of a training."""
import sys
import time

import torch


def fill():
    """Allocates until PyTorch refuses, frees everything, and allocates again."""
    total = torch.cuda.mem_get_info()[1] >> 20
    held, refused = [], ""
    try:
        for _ in range(100000):
            held.append(torch.empty(32 << 20, dtype=torch.uint8, device="cuda").fill_(1))
    except torch.cuda.OutOfMemoryError as error:
        refused = type(error).__name__
    first = len(held)
    held.clear()
    torch.cuda.empty_cache()
    again = [torch.empty(32 << 20, dtype=torch.uint8, device="cuda") for _ in range(first // 2)]
    print(f"total={total} refused={refused} blocks={first} again={len(again)}")


def model():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(1024, 1024) for _ in range(8)]
    net = torch.nn.Sequential(*[part for layer in layers for part in (layer, torch.nn.GELU())]).cuda()
    data = torch.randn(256, 1024, device="cuda")
    return net, torch.optim.SGD(net.parameters(), lr=0.01), data


def measure(step, count):
    for _ in range(50):
        step()
    torch.cuda.synchronize()
    best = 0.0
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        best = max(best, count / (time.perf_counter() - begin))
    print(f"steps={best:.1f}")


def train():
    net, optimizer, data = model()

    def step():
        optimizer.zero_grad(set_to_none=True)
        net(data).square().mean().backward()
        optimizer.step()

    measure(step, 300)


def graph():
    net, optimizer, data = model()

    def step():
        optimizer.zero_grad(set_to_none=True)
        net(data).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        step()
    measure(recorded.replay, 300)


{"fill": fill, "train": train, "graph": graph}[sys.argv[1]]()
