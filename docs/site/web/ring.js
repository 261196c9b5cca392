// SPDX-License-Identifier: MIT
// ring.js: stage 06: ranks on a circle, whose block is where, what travels, and how (lse, O) of a
// token grows. All of it is the method's timetable, replayed. Registers in `pages` (pages.js).
"use strict";
const METHODS = [["7", "ring-minimal"], ["1", "ring"], ["2", "burst"], ["3", "allgather"],
                 ["5", "ring-double"]];
const TENSORS = ["Q", "K", "V", "O", "lse", "delta", "dO", "dQ", "dK", "dV"];
const hue = (r, G, dim) => `hsl(${Math.round(360 * r / G + 20)} 65% 50% / ${dim ? .25 : .75})`;

pages.ring = c => [{ ranks: size("ranks", 2, 8, 4), N: size("tokens N", 8, 64, 16),
        method: { label: "method", options: METHODS, value: "1" },
        layout: { label: "layout", options: Object.entries(["contiguous", "zigzag", "striped"]) },
        causal: { label: "causal", type: "checkbox", value: 1 },
        left: size("window (-1: none)", -1, 32, -1),
        backward: { label: "backward too", type: "checkbox" }, d: size("channels d", 1, 8, 2),
        input: { ...INPUT, value: "0" }, own: OWN, row: size("token to follow", 0, 63, 13) }, v => {
        const { N, d } = fill(c, v), yes = x => x ? 1 : 0;
        const log = c.ring(+v.method, +v.layout, v.ranks, yes(v.causal), v.left, yes(v.backward));
        const owner = Array(N), pairs = [], row = Math.min(N - 1, v.row), steps = [];
        const named = word => log.filter(e => e.op === "=" && e.words === word).map(e => e.values);
        const lse = named("lse"), O = named("O").map(values => matrix(values, d));
        const lines = log.filter(e => e.op === "r").map(e =>
            Object.assign(e.values, { at: line(e) }));
        for (const r of lines.filter(r => r[0] === 0))
            range(r[4]).forEach(t => owner[r[2] + t * r[3]] = r[1]);
        for (const r of lines.filter(r => r[0] % 2)) { // quarters of a block are one
            const same = pairs.find(p => p.slice(1, 6).join() === r.slice(1, 6).join());
            same ? same[6] += r[6] : pairs.push(Object.assign([...r], { at: r.at }));
        }
        for (const pass of [0, 1]) {
            const work = pairs.filter(r => r[1] === pass), rank = owner[row];
            const sent = lines.filter(r => r[0] === 2 && r[1] === pass);
            const count = work.length ? 1 + Math.max(...work.map(r => r[2])) : 0;
            for (let t = 0; t < count; t++) {
                const now = work.filter(r => r[2] === t), mine = now.find(r => r[4] === rank);
                const sees = mine && mine[6] ? "meet" : "see nothing of";
                const what = !mine ? `rank ${rank} has no work` : mine[0] === 3 ?
                    `the queries of rank ${rank} at rank ${mine[3]} ${sees} its keys` :
                    `the queries of rank ${rank} ${sees} the keys of rank ${mine[5]}`;
                steps.push({ pass, t, count, owner, row, rank, all: work, work: now, d, lse, O,
                    sent: sent.filter(r => r[2] === t), at: (mine || now[0] || {}).at,
                    say: `${pass ? "Backward" : "Forward"}, step ${t}: ${what}.` +
                        (pass ? "" : ` The lse of token ${row} is ${shown(lse[t][row])}.`),
                    question: t && mine && mine[0] === 1 ? { answer: mine[5],
                        text: `Whose keys will rank ${rank} work with in step ${t}?` } : null });
            }
        }
        return steps;
    }, (s, v) => {
        const G = v.ranks, R = 120, mid = 165, out = [];
        const place = r => [mid + R * Math.sin(2 * Math.PI * r / G),
                            mid - R * Math.cos(2 * Math.PI * r / G)];
        const most = Math.max(1, ...s.all.map(r => r[6])), bytes = {}, ways = s.sent.map(m => m[3] +
            "," + m[4]), words = list => unique(list.map(m => TENSORS[m[5]])).join(" ");
        s.sent.forEach((m, k) => bytes[ways[k]] = (bytes[ways[k]] || 0) + m[6]);
        const wide = Math.max(1, ...Object.values(bytes)), sum = list =>
            list.reduce((n, r) => n + r[6], 0);
        for (const [way, n] of Object.entries(bytes)) {
            const [a, b] = way.split(","), [x, y] = place(+a), [p, q] = place(+b);
            const cx = .625 * (x + p) - .25 * mid, cy = .625 * (y + q) - .25 * mid;
            const what = words(s.sent.filter((m, k) => ways[k] === way));
            const arc = `M${x} ${y} Q${cx} ${cy} ${p} ${q}`;
            out.push(`<path d="${arc}" class="arc" style="stroke-width:${2 + 7 * n / wide}">` +
                `<title>${what}: ${n} bytes from ${a} to ${b}</title></path><path ` +
                `d="M-9 -11 L11 0 L-9 11 Z" class="head" style="offset-path:path('${arc}')"/>`);
        }
        range(G).forEach(g => {
            const [x, y] = place(g), work = s.work.filter(r => r[3] === g), w = work[0];
            const guest = w && (w[0] === 1 ? w[5] : w[4]), share = Math.min(1, sum(work) / most);
            out.push(`<g class="rank"><circle cx="${x}" cy="${y}" r="30" class="back"/><circle ` +
                `cx="${x}" cy="${y}" r="30" style="fill:${hue(g, G, true)};stroke:${hue(g, G)};` +
                `stroke-width:${g === s.rank ? 4 : 2}"/>` +
                (w ? `<rect x="${x - 20}" y="${y - 2}" width="40" height="18" rx="3" style="fill:` +
                `${hue(guest, G, !w[6])}"/><text x="${x}" y="${y + 11}" text-anchor="middle">` +
                `${w[0] === 1 ? "K" : "Q"}${guest}</text><rect x="${x - 20}" y="${y + 17}" ` +
                `height="4" width="${40 * share}" class="bar"/>` : "") + `<text x="${x}" ` +
                `y="${y - 8}" text-anchor="middle">rank ${g}</text></g>`);
        });
        const seen = range(G).map(() => Array(G)), w = 46, gantt = [];
        s.all.filter(r => r[2] <= s.t).forEach(r => seen[r[4]][r[5]] = r[6]);
        const word = r => r[6] ? `${r[6]}` : "skip";
        range(G).forEach(g => gantt.push(`<text x="2" y="${14 + g * 17}">rank ${g}</text>`));
        for (const r of s.all)
            gantt.push(`<rect x="${52 + r[2] * w}" y="${4 + r[3] * 17}" height="13" width="` +
                `${Math.max(2, (w - 4) * r[6] / most)}" style="fill:` +
                `${hue(r[0] === 1 ? r[5] : r[4], G, r[2] > s.t)}"><title>rank ${r[3]}, step ` +
                `${r[2]}: ${word(r)} pairs</title></rect>`);
        gantt.push(`<line x1="${52 + (s.t + 1) * w - 2}" x2="${52 + (s.t + 1) * w - 2}" y1="0" ` +
            `y2="${G * 17 + 4}" class="m"/>`);
        const to = m => unique(m.map(r => r[4])).map(p =>
            `${words(m.filter(r => r[4] === p))} to ${p}`).join(", ");
        const all = sum(s.all) || 1, before = s.t ? [s.lse[s.t - 1][s.row],
            ...s.O[s.t - 1][s.row]] : ["-inf", ...range(s.d).map(() => 0)];
        return [svg(330, 330, out.join(""), `ring: ${s.say}`),
            tag("div", { class: "tokens", title: "who has which token" }, ...s.owner.map((r, n) =>
                tag("i", { style: `background:${hue(r, G, n !== s.row)}`,
                           title: `token ${n}: rank ${r}` }))),
            svg(60 + s.count * w, G * 17 + 6, gantt.join(""), "work of each rank, step by step"),
            heat({ rows: G, cols: G, value: (q, k) => seen[q][k], lit: { rows: [s.rank, 1] },
                colour: (q, k) => seen[q][k] === undefined ? undefined : seen[q][k] / most,
                row: s.rank, names: ["queries of rank", "keys of rank"], tell: n => `${n} pairs`,
                label: "pairs seen, rank by rank" }),
            s.pass ? null : table(`token ${s.row}`, ["lse", ...numbered("O", s.d)],
                [["before", before], ["now", [s.lse[s.t][s.row], ...s.O[s.t][s.row]]]],
                r => r === 1), tag("details", {}, tag("summary", {}, "all ranks, all tokens"),
                table("ranks", ["works with", "visible pairs", "share of all work",
                    "sends meanwhile"], range(G).map(g => {
                        const mine = s.work.filter(r => r[3] === g);
                        return [`rank ${g}`, [unique(mine.map(r => r[0] === 1 ? `K${r[5]}` :
                            `Q${r[4]}`)).join(" ") || "nothing", mine.map(word).join(" "),
                            `${Math.round(100 * sum(s.all.filter(r => r[3] === g)) / all)} %`,
                            to(s.sent.filter(r => r[3] === g)) || "nothing"]];
                    })), s.pass ? null : outputs("lse O", s.lse[s.t], s.O[s.t], n => n === s.row))];
    }];
