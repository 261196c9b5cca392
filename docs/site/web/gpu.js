// SPDX-License-Identifier: MIT
// gpu.js: one block of a CUDA rung, from a recorded trace of the model of a GPU. The one page that
// computes nothing. Registers in `pages` (pages.js).
"use strict";
const WORK = ["waits", "copies", "global memory", "shared memory", "exp, shuffle", "multiplies"];
const tint = name => WORK.indexOf(name) ? hue(WORK.indexOf(name), WORK.length) : "transparent";

// What the lanes of a warp ask for at once, word by word, above its bank or sector.
function stacks(r) {
    const shared = r.space === "shared", place = shared ? "bank" : "sector", all = {};
    r.addresses.forEach((a, lane) => range(r.bytes / 4).forEach(n => {
        const word = (a >> 2) + n;
        ((all[shared ? word % 32 : word >> 3] ??= {})[word] ??= []).push(lane);
    }));
    const high = Math.max(...Object.values(all).map(w => Object.keys(w).length)), s = 11, out = [];
    const at = shared ? range(32) : Object.keys(all);
    at.forEach((name, k) => Object.entries(all[name] || {}).forEach(([word, lanes], n) =>
        out.push(`<rect x="${k * s}" y="${(high - 1 - n) * s}" width="${s - 1}" class="bar" ` +
            `height="${s - 1}"><title>${place} ${name}: bytes ${4 * word} to ${4 * word + 3}, ` +
            `lane ${lanes.join(", ")}</title></rect>`)));
    const text = `${shared ? "32 banks" : `${at.length} sectors`} and the words that a warp asks ` +
        `for: ${r.cost} ${shared ? "wavefronts" : "sectors"}, at best ${r.ideal}`;
    return tag("div", {}, tag("h3", {}, text), svg(at.length * s, high * s, out.join(""), text));
}

pages.gpu = () => [{ rung: { label: "kernel", options: Object.keys(steps_traces).map(n => [n, n]) },
                     warp: size("warp to follow", 0, 3, 0) }, v => {
        const { traceEvents: all, requests } = steps_traces[v.rung];
        const spans = all.filter(e => e.ph === "X"), last = spans.map(e => e.ts + e.dur);
        const rows = all.filter(e => e.name === "thread_name").map(e => e.args.name);
        const place = e => e.line.split(" > ")[0];
        return groups(spans.filter(e => e.tid === v.warp), e => place(e.args)).map(g => {
            const from = g.events[0].ts, { ts, dur } = g.events[g.events.length - 1];
            const [file, number] = g.key.split(":");
            const asked = requests.filter(r => place(r) === g.key);
            const bank = asked.find(r => r.space === "shared"), to = ts + dur;
            const sums = WORK.map(w => [w, g.events.filter(e => e.name === w)
                .reduce((n, e) => n + e.dur, 0)]).filter(([, n]) => n);
            return { spans, rows, from, to, asked, end: Math.max(...last),
                at: { file: `03_flash_forward/cuda/${file}`, func: "", line: +number },
                say: `Warp ${v.warp}, ticks ${from} to ${to}, line ${number}: ` +
                    `${sums.map(([w, n]) => `${w} ${n}`).join(", ")}.`,
                question: bank ? { answer: (bank.addresses[3] >> 2) % 32, text: `In line ` +
                    `${number} lane 3 asks shared memory for byte ${bank.addresses[3]}. A bank ` +
                    "has 4 bytes, and there are 32. Which bank is asked first?" } : null };
        });
    }, (s, v) => {
        const w = 640 / s.end, meanwhile = (row, name) => s.spans.filter(e => e.tid === row &&
            e.name === name).reduce((n, e) => n + Math.max(0, Math.min(s.to, e.ts + e.dur) -
            Math.max(s.from, e.ts)), 0);
        const out = s.spans.map(e => `<rect x="${80 + e.ts * w}" y="${4 + 18 * e.tid}" ` +
            `height="14" width="${e.dur * w}" class="span" style="fill:${tint(e.name)};opacity:` +
            `${e.ts < s.to ? 1 : .3}"><title>${s.rows[e.tid]}, ticks ${e.ts} to ${e.ts + e.dur}: ` +
            `${e.name}, ${e.args.line}</title></rect>`);
        s.rows.forEach((name, k) => out.push(`<text x="0" y="${15 + 18 * k}">${name}</text>`));
        out.push(`<rect x="${80 + s.from * w}" y="${2 + 18 * v.warp}" height="18" class="frame" ` +
            `width="${Math.max(2, (s.to - s.from) * w)}"/>`);
        return [svg(724, 8 + 18 * s.rows.length, out.join(""), `who waits: ${s.say}`),
            tag("p", { class: "chips" }, ...WORK.map(name => tag("span",
                { style: `border-bottom:4px solid ${tint(name)}` }, name))),
            table("ticks", WORK, s.rows.map((name, row) => [name, WORK.map(n => `${meanwhile(row,
                n)}`)]), row => row === v.warp), ...s.asked.map(stacks)];
    }];
