"""What is computed where a remote model runs: PyTorch alone, because nothing else of this package is there.

Writes of [row, d] become their inner products with the directions of the options and of the model's mean, the one
product of `attribution.directions`: a few numbers for every component instead of d.
"""

# No `from __future__`, no types beyond the built-in ones: this file's functions travel by value.
import torch

# Unembedding rows that are up-cast at a time.
CHUNK = 4096


def project(
    plan: dict,
    targets: torch.Tensor,
    writes: list,
    cuts: dict,
    final: torch.Tensor,
    unembedded: torch.Tensor,
    logits: torch.Tensor,
    unembedding: tuple,
) -> dict:
    """The contributions of some rows of a pass, float64 on the CPU.

    Args:
        plan: Numbers of the model: `gain`, `bias`, `centered`, `eps` of its final norm, `multiplier` of its logits,
            `scales` of its writes, `constant`: whether the read-out adds something; `roundoff` of half precision or
            None.
        targets: Token ids `[row, option]`.
        writes, final: What each embedding and sublayer wrote, `[row, d]`, and what the final norm is given.
        cuts: {number of a write: (values before its output map `[row, part·width]`, the map's weight `[part·width, d]`,
            its bias or None, how many parts, whether the bias has a row)}.
        unembedded, logits: The unembedding's output and the model's answer, `[row, vocabulary]`.
        unembedding: Its weight `[vocabulary, d]` and its bias or None.

    Returns:
        values `[row, component, option]`, means `[row, component]` (E_p), lost `[row, option]`, unembedded and logits
        `[row, option]`, log_partition, mean_logit, statistic and excess `[row]`, statistics `[row, write]`, split [1].
    """
    with torch.no_grad():
        device = final.device
        weight, bias = unembedding
        gain, norm_bias = plan["gain"].to(device), plan["bias"]

        def statistic(x: torch.Tensor) -> torch.Tensor:
            if plan["eps"] is None:
                return torch.ones_like(x[..., 0])
            x = x - x.mean(-1, keepdim=True) if plan["centered"] else x
            return (x.square().mean(-1) + plan["eps"]).sqrt()

        # The model's distribution p of the next token, and the mean row of the unembedding under it.
        wide = logits.double()
        log_partition = wide.logsumexp(1)
        p = (wide - log_partition[:, None]).exp()
        chunks = range(0, p.shape[1], CHUNK)
        expected = sum(p[:, i : i + CHUNK] @ weight[i : i + CHUNK].to(device).double() for i in chunks)

        # Directions [row, option and mean, d + 1]; the last number is what the read-out adds by itself.
        targets = targets.to(device)
        rows = torch.cat([weight[targets.to(weight.device)].to(device).double(), expected[:, None]], 1)
        rows = rows * plan["multiplier"]
        added = torch.zeros_like(rows[..., 0])
        if bias is not None:
            biases = bias.to(device).double()
            added = torch.cat([biases[targets], (p @ biases)[:, None]], 1) * plan["multiplier"]
        added = added if norm_bias is None else added + rows @ norm_bias.to(device)
        rows = rows * gain
        rows = rows - rows.mean(-1, keepdim=True) if plan["centered"] else rows

        final = final.double()
        sigma = statistic(final)[:, None, None]

        def inner(x: torch.Tensor) -> torch.Tensor:  # stream vectors [row, part, d] -> [row, part, option and mean]
            return x @ rows.transpose(1, 2) / sigma

        stream = torch.stack([w.to(device).double() * s for w, s in zip(writes, plan["scales"], strict=True)], 1)
        whole = inner(stream)
        blocks, split = [], torch.zeros(1, dtype=torch.float64, device=device)
        for number in range(len(writes)):
            u = whole[:, number : number + 1]
            if number in cuts:
                x, map_weight, map_bias, count, has_bias = cuts[number]
                scale, x = plan["scales"][number], x.to(device).double().unflatten(1, (count, -1))
                map_weight = map_weight.to(device).to(torch.promote_types(map_weight.dtype, torch.float32))
                before = ((rows * scale).to(map_weight.dtype) @ map_weight.T).double().unflatten(2, (count, -1))
                u = torch.einsum("rpe,rnpe->rpn", x, before) / sigma
                if has_bias:
                    u = torch.cat([u, inner((map_bias.to(device).double() * scale).expand(len(x), 1, -1))], 1)
                # Parts are compared with their write, at the options.
                least = max(0.01 * float(whole[..., :-1].abs().sum(1).max()), 1e-30)
                gap = (u.sum(1) - whole[:, number])[:, :-1].abs() / u.abs().sum(1)[:, :-1].clamp_min(least)
                split = torch.maximum(split, gap.max()[None])
            blocks.append(u)
        lost = inner(final[:, None]) - torch.cat(blocks, 1).sum(1, keepdim=True)
        if plan["constant"]:
            blocks.append(added[:, None])
        running = stream.cumsum(1)
        excess = torch.zeros_like(log_partition)
        if plan["roundoff"] is not None:
            blocks.append(lost)
            # Every addition rounds by no more than this share of what it gives.
            allowed = plan["roundoff"] * (running.abs().sum(1) + stream.abs().sum(1))
            excess = ((final - running[:, -1]).abs() / allowed.clamp_min(1e-30)).amax(1)
        u = torch.cat(blocks, 1)
        answers = {
            "values": u[..., :-1],
            "means": u[..., -1],
            "lost": lost[:, 0, :-1],
            "unembedded": unembedded.gather(1, targets.to(unembedded.device)).double(),
            "logits": logits.gather(1, targets.to(logits.device)).double(),
            "log_partition": log_partition,
            "mean_logit": (p * unembedded.to(device)).sum(1) * plan["multiplier"],
            "statistic": sigma[:, 0, 0],
            "statistics": statistic(running),
            "excess": excess,
            "split": split,
        }
        return {name: x.cpu() for name, x in answers.items()}
