"""What is computed where a remote model runs: PyTorch alone, because nothing else of this package is there.

Writes of [row, d] become their inner products with the options' directions and with the model's mean direction, as in
`attribution.directions` and `attribution.vocabulary`: a few numbers for every component instead of d.
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
        gain = plan["gain"].to(device)
        norm_bias = None if plan["bias"] is None else plan["bias"].to(device)
        targets = targets.to(device)

        def statistic(x: torch.Tensor) -> torch.Tensor:
            if plan["eps"] is None:
                return torch.ones_like(x[..., 0])
            x = x - x.mean(-1, keepdim=True) if plan["centered"] else x
            return (x.square().mean(-1) + plan["eps"]).sqrt()

        def fold(x: torch.Tensor) -> torch.Tensor:
            x = x * gain
            return x - x.mean(-1, keepdim=True) if plan["centered"] else x

        # Once for every distinct token, then for each row its own.
        tokens, index = targets.unique(return_inverse=True)
        raw = weight[tokens.to(weight.device)].to(device).double() * plan["multiplier"]
        constants = torch.zeros(len(tokens), dtype=torch.float64, device=device)
        constants = constants if norm_bias is None else constants + raw @ norm_bias
        if bias is not None:
            constants = constants + bias[tokens.to(bias.device)].to(device).double() * plan["multiplier"]
        directions = fold(raw)

        def own(u: torch.Tensor) -> torch.Tensor:  # [row, part, token] -> [row, part, option]
            return u.gather(2, index[:, None].expand(-1, u.shape[1], -1))

        # The model's distribution of the next token, and the mean direction under it.
        wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        log_partition = wide.double().logsumexp(1)
        p = (wide - log_partition[:, None].to(wide.dtype)).exp()
        expected = torch.zeros(len(p), weight.shape[1], dtype=torch.float64, device=device)
        for start in range(0, p.shape[1], CHUNK):
            some = weight[start : start + CHUNK].to(device, p.dtype)
            expected += (p[:, start : start + CHUNK] @ some).double()
        sums = p.sum(1, dtype=torch.float64)
        expected *= (plan["multiplier"] / sums)[:, None]
        expected_constant = torch.zeros_like(sums) if norm_bias is None else expected @ norm_bias
        if bias is not None:
            expected_constant = expected_constant + (p @ bias.to(device, p.dtype)).double() * plan["multiplier"] / sums
        mean_logit = (p * unembedded.to(p.dtype)).sum(1, dtype=torch.float64) * plan["multiplier"] / sums
        expected = fold(expected)

        final = final.double()
        sigma = statistic(final)[:, None, None]
        stream = torch.stack([w.to(device).double() * s for w, s in zip(writes, plan["scales"], strict=True)], 1)
        whole = own(stream @ directions.T) / sigma
        whole_means = (stream @ expected[:, :, None])[:, :, 0] / sigma[:, :, 0]
        values, means = [], []
        split = torch.zeros(1, dtype=torch.float64, device=device)
        for number in range(len(writes)):
            u, mean = whole[:, number : number + 1], whole_means[:, number : number + 1]
            if number in cuts:
                x, map_weight, map_bias, count, has_bias = cuts[number]
                map_weight = map_weight.to(device).to(torch.promote_types(map_weight.dtype, torch.float32))
                x, scale = x.to(device).double().unflatten(1, (count, -1)), plan["scales"][number]
                before = ((directions * scale).to(map_weight.dtype) @ map_weight.T).double().unflatten(1, (count, -1))
                u = own(torch.einsum("rpe,tpe->rpt", x, before)) / sigma
                before = ((expected * scale).to(map_weight.dtype) @ map_weight.T).double().unflatten(1, (count, -1))
                mean = (x * before).sum(2) / sigma[:, :, 0]
                if has_bias:
                    vector = (map_bias.to(device).double() * scale)[None, None]
                    rest = own((vector @ directions.T).expand(len(x), -1, -1)) / sigma
                    u = torch.cat([u, rest], 1)
                    mean = torch.cat([mean, (vector[0] @ expected.T).T / sigma[:, :, 0]], 1)
                least = max(0.01 * float(whole.abs().sum(1).max()), 1e-30)
                gap = (u.sum(1) - whole[:, number]).abs() / u.abs().sum(1).clamp_min(least)
                split = torch.maximum(split, gap.max()[None])
            values.append(u)
            means.append(mean)
        total, written = torch.cat(values, 1).sum(1), torch.cat(means, 1).sum(1)
        lost = (own(final[:, None] @ directions.T) / sigma)[:, 0] - total
        if plan["constant"]:
            values.append(constants[index][:, None])
            means.append(expected_constant[:, None])
        running = stream.cumsum(1)
        excess = torch.zeros_like(sums)
        if plan["roundoff"] is not None:
            values.append(lost[:, None])
            means.append((final[:, None] @ expected[:, :, None])[:, :, 0] / sigma[:, :, 0] - written[:, None])
            # Every addition rounds by no more than this share of what it gives.
            allowed = plan["roundoff"] * (running.abs().sum(1) + stream.abs().sum(1))
            excess = ((final - running[:, -1]).abs() / allowed.clamp_min(1e-30)).amax(1)
        statistics = statistic(running)
        answers = {
            "values": torch.cat(values, 1),
            "means": torch.cat(means, 1),
            "lost": lost,
            "unembedded": unembedded.gather(1, targets.to(unembedded.device)).double(),
            "logits": logits.gather(1, targets.to(logits.device)).double(),
            "log_partition": log_partition,
            "mean_logit": mean_logit,
            "statistic": sigma[:, 0, 0],
            "statistics": statistics,
            "excess": excess,
            "split": split,
        }
        return {name: x.cpu() for name, x in answers.items()}
