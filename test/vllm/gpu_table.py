#!/usr/bin/env python3
"""Tables (Markdown) and plots (SVG, needs matplotlib) of what gpu_all.sh measured.

    gpu_table.py RESULT.json... [--merge OUT.json] [--plots FOLDER]

A result is an engine's file, or what --merge made of some of them. Of the questions only those count that hit as much
as they should: the first one on a document also finds what the compared one before it has stored.
"""
import argparse
import json
import pathlib
import statistics

NAMES = {
    "plain": "no connector: computed, or the prefix in HBM",
    "layerwise": "**Tutti**, `layerwise`, four modelled drives",
    "graphs": "**Tutti**, `layerwise`, CUDA graphs for decoding, four modelled drives",
    "async": "**Tutti**, `async`, four modelled drives",
    "dram": "vLLM's OffloadingConnector, pinned DRAM",
    "lmcache-dram": "LMCache 0.5.3, pinned DRAM",
    "lmcache-layerwise": "LMCache 0.5.3, pinned DRAM, layer-wise",
    "lmcache-disk": "LMCache 0.5.3, the machine's disk",
    "disk": "**Tutti**, `async`, the machine's disk",
}
KEPT = ("tokens", "hit", "kind", "cached", "ttft_s", "token")


def read(paths):
    """Engines by name; those of one name are one."""
    engines = {}
    for path in paths:
        data = json.loads(path.read_text())
        for one in data["engines"] if "engines" in data else [data]:
            name = one["name"].removeprefix("model-")
            engine = engines.setdefault(name, {"name": name, "rows": [], "sums": {}})
            for r in one["rows"]:
                if r.get("label") == "document" and not one.get("sums"):  # computed, nothing is copied aside
                    r = {**r, "kind": "timed", "hit": 0.0, "tokens": r["tokens"] - 1}
                if r["kind"]:
                    engine["rows"].append({k: r[k] for k in KEPT if k in r} if "ttft_s" in r else {**r, "name": name})
            for k, v in one.get("sums", {}).items():
                engine["sums"][k] = engine["sums"].get(k, 0) + v
    return engines


def times(engine, tokens, hit):
    return sorted(r["ttft_s"] for r in engine["rows"]
                  if r.get("tokens") == tokens and r["kind"] == "timed" and r["hit"] == hit
                  and tokens * hit - 256 <= r["cached"] <= tokens * hit)


def cell(found):
    if not found:
        return ""
    low, high = found[0], found[-1]
    return f"{low:.3f}" if round(low, 3) == round(high, 3) else f"{low:.3f} to {high:.3f}"


def table(engines, columns, heads):
    print("\n| |", " | ".join(heads), "|\n|---" + "|---" * len(heads) + "|")
    for name, label in NAMES.items():
        cells = [cell(times(engines[name], *c)) for c in columns] if name in engines else []
        if any(cells):
            print("|", label, "|", " | ".join(cells), "|")


def decoding(engines):
    print("\n| decoding, ms a step | steps | median | 5 to 95 % | beside the steps alone right before |\n|---|---|---|---|---|")
    for e in engines.values():
        for r in e["rows"]:
            if "median_ms" in r:
                beside = f"{r['against']:.3f} ({r['least']:.2f} to {r['most']:.2f})" if "against" in r else ""
                spread = f"{r['p5_ms']:.1f} to {r['p95_ms']:.1f}"
                print(f"| {e['name']}, {r['kind']} | {r['steps']} | {r['median_ms']:.2f} | {spread} | {beside} |")


def plots(engines, lengths, folder):
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "tutti", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    hits = (0.5, 0.75, 0.9375, 0.984)
    for name, title, label, points in (
            ("vllm-by-hit", "vLLM, 64K tokens", "hit ratio, %", [(65536, h, 100 * h) for h in hits]),
            ("vllm-by-length", "vLLM, 93.75 % hit", "tokens", [(n, 0.9375, n) for n in lengths])):
        fig, ax = plt.subplots(figsize=(6, 3.6))
        for key, text in NAMES.items():
            found = [(x, t) for n, h, x in points if key in engines for t in [times(engines[key], n, h)] if t]
            if len(found) > 1 and key != "graphs":
                x, t = [x for x, _ in found], [statistics.median(t) for _, t in found]
                ax.plot(x, t, "o-", markersize=3, linewidth=1, label=text.replace("*", "").replace("`", ""),
                        color="black" if key == "plain" else None)
        if name == "vllm-by-length":
            ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set(title=title, xlabel=label, ylabel="time to the first token, s")
        ax.grid(True, linewidth=0.3)
        ax.legend(fontsize=7)
        fig.tight_layout()
        fig.savefig(folder / f"{name}.svg", metadata={"Date": None})
        print(folder / f"{name}.svg")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("results", type=pathlib.Path, nargs="+")
    p.add_argument("--merge", type=pathlib.Path, help="one file of all")
    p.add_argument("--plots", type=pathlib.Path, help="a folder for the SVGs")
    args = p.parse_args()
    engines = read(args.results)
    if args.merge:
        args.merge.write_text(json.dumps({"engines": list(engines.values())}, indent=0) + "\n")
    lengths = sorted({r["tokens"] for e in engines.values() for r in e["rows"] if "tokens" in r})
    table(engines, [(65536, h) for h in (0, 0.5, 0.75, 0.9375, 0.984)],
          ["64K tokens: 0 %", "50 %", "75 %", "93.75 %", "98.4 %"])
    table(engines, [(n, h) for n in lengths for h in (0.75, 0.9375)],
          [f"{n // 1024}K: {h}" for n in lengths for h in ("75 %", "93.75 %")])
    decoding(engines)
    for e in engines.values():
        sums = e["sums"]
        if sums.get("compared_blocks"):
            gb, different = sums["compared_bytes"] / 1e9, sums["different_blocks"]
            print(f"\n{e['name']}: {gb:.1f} GB of loaded blocks compared, {different} blocks different")
    if args.plots:
        plots(engines, lengths, args.plots)


if __name__ == "__main__":
    main()
