#!/usr/bin/env python3
"""Draws gpu.json, an SVG a figure (needs matplotlib).

    bench/gpu/plot.py GPU.JSON [FOLDER]

The numbers in the names are the paper's figures that they answer to.
"""
import collections
import json
import os
import sys

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "tutti"  # equal rows, equal bytes
matplotlib.rcParams["svg.fonttype"] = "none"  # text, not outlines
matplotlib.rcParams["font.size"] = 9
from matplotlib import pyplot as plt  # noqa: E402

# figure of the rows: file, title, x axis, y axis, x scale
LINES = {
    "3": ("fig03-tables", "A chain's keys in an index of a million blocks", "keys", "us", "log"),
    "9 retrieve": ("fig09-retrieve", "Retrieve into HBM, model controller in place", "tokens", "GB/s", "log"),
    "9 store": ("fig09-store", "Store out of HBM, model controller in place", "tokens", "GB/s", "log"),
    "11": ("fig11-ttft-by-prefix", "Time to first token, 2K new tokens behind a prefix", "tokens of the prefix", "s", "log"),
    "13": ("fig13-ttft-by-hit", "Time to first token, 64K tokens", "hit ratio", "s", "linear"),
    "13 added": ("fig13-added", "Added to the time with the prefix in HBM, 64K tokens", "hit ratio", "%", "linear"),
    "CPU": ("cpu-by-blocks", "CPU of the calling thread", "blocks", "us", "log"),
    "SMs": ("retrieve-by-sms", "Retrieve by SMs of the I/O kernel", "SMs", "GB/s", "log"),
}
LOG_Y = {"3", "11", "CPU", "13 added"}
COLORS = {"Tutti": "tab:blue", "Tutti, per layer": "tab:cyan", "(a) read, copy each": "tab:red",
          "(b) read, batched": "tab:orange", "(c) cuFile": "tab:brown", "(d) DRAM, layer-wise": "tab:green",
          "(e) recompute": "tab:gray", "(f) CPU issues": "tab:purple", "in HBM already": "black",
          "bound of the link": "black", "CPU, lookup": "tab:blue", "CPU, insert": "tab:cyan", "GPU, lookup": "tab:red",
          "GPU, lookup beside products": "tab:pink", "GPU, insert": "tab:orange"}


def lines(rows, figure, folder):
    name, title, x_label, y_label, scale = LINES[figure]
    by_system = collections.OrderedDict()
    for r in rows:
        if r.get("figure") == figure and r["value"] is not None:
            by_system.setdefault(r["system"], []).append(r)
    if not by_system:
        return
    fig, ax = plt.subplots(figsize=(6, 3.6))
    for system, points in by_system.items():
        points.sort(key=lambda r: r["x"])
        x, y = [r["x"] for r in points], [r["value"] for r in points]
        spread = [[v - r["interval"][0] for v, r in zip(y, points)], [r["interval"][1] - v for v, r in zip(y, points)]]
        ax.errorbar(x, y, yerr=spread, marker="o", markersize=3, linewidth=1, capsize=2, label=system,
                    color=COLORS.get(system),
                    linestyle="--" if system.startswith(("bound", "(e)")) else "-")
    ceilings = [r["ceiling"] for r in rows if r.get("figure") == figure and r["ceiling"]]
    if figure in ("9 retrieve", "9 store", "SMs") and ceilings:
        ax.axhline(ceilings[0], color="gray", linestyle=":", label="copy engine")
    if scale == "log":
        ax.set_xscale("log", base=2)
    if figure in LOG_Y:
        ax.set_yscale("symlog" if figure == "13 added" else "log")
    else:
        ax.set_ylim(bottom=0)
    finish(fig, ax, title, x_label, y_label, os.path.join(folder, name + ".svg"))


def bars(rows, folder):
    """Figure 6: reading and writing, alone and together."""
    what = ["read alone", "read beside a store", "write alone", "write beside a retrieve"]
    places = collections.OrderedDict()
    for r in rows:
        if r.get("figure") == "6":
            places.setdefault(r["system"], {})[int(r["x"])] = r["value"]
    if not places:
        return
    fig, ax = plt.subplots(figsize=(6, 3.6))
    for i, name in enumerate(what):
        ax.bar([k + 0.2 * i for k in range(len(places))], [p.get(i, 0) for p in places.values()], 0.19, label=name)
    ax.set_xticks([k + 0.3 for k in range(len(places))])
    ax.set_xticklabels([p.replace(", ", ",\n").replace(" as ", " as\n") for p in places], fontsize=8)
    finish(fig, ax, "Reading and writing, alone and together", "", "GB/s", os.path.join(folder, "fig06-mixed.svg"))


def finish(fig, ax, title, x_label, y_label, path):
    ax.set_title(title)
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.grid(True, linewidth=0.3)
    ax.legend(fontsize=7)
    fig.tight_layout()
    fig.savefig(path, metadata={"Date": None})
    plt.close(fig)
    print(path)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as f:
        rows = json.load(f)
    folder = sys.argv[2] if len(sys.argv) > 2 else "."
    os.makedirs(folder, exist_ok=True)
    for figure in LINES:
        lines(rows, figure, folder)
    bars(rows, folder)


main()
