"use strict";
// Draws the page's charts from the JSON beside it. What it writes into the page goes in as text.
(function () {
  const runs = JSON.parse(document.getElementById("data").textContent).runs;
  // Okabe and Ito's colours: told apart by the colour-blind too.
  const BLUE = "#0072B2", ORANGE = "#E69F00", GREEN = "#009E73", PINK = "#CC79A7",
    SKY = "#56B4E9", RED = "#D55E00", YELLOW = "#F0E442", GREY = "#999999";
  const PARTS = { weights: BLUE, gradients: GREEN, optimizer: PINK, activations: ORANGE,
    workspace: SKY, input: YELLOW, other: GREY };
  const EVENTS = {
    oom: ["triangle", RED, "out of memory"], cannot_fit: ["triangle", RED, "does not fit"],
    plan: ["diamond", BLUE, "new slices"], restart: ["rect", PINK, "started again"],
    resumed: ["circle", GREEN, "resumed"], snapshot_taken: ["emptyCircle", GREY, "snapshot"],
    note: ["pin", SKY, "note"], finding: ["pin", ORANGE, "finding"],
    run_ended: ["rect", GREY, "end"],
  };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const paper = window.matchMedia("print");
  const charts = [];

  // As the user writes sizes.
  const UNITS = document.body.dataset.units === "GiB"
    ? [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]
    : [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]];

  function bytes(count) {
    const sign = count < 0 ? "-" : "";
    count = Math.abs(count);
    for (const [unit, size] of UNITS) {
      if (count >= size * 0.9995) {
        const value = count / size;
        return sign + value.toFixed(value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2) + " " + unit;
      }
    }
    return sign + count.toFixed(0) + " B";
  }
  function axisBytes(count) { return bytes(count).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " "); }

  // The unit of a time axis by its length, so that its labels are round.
  function clock(duration) {
    if (duration < 180) return [1, "s"];
    if (duration < 3 * 3600) return [60, "min"];
    return duration < 3 * 86400 ? [3600, "h"] : [86400, "days"];
  }
  function tip(lines) {
    const box = document.createElement("div");
    box.style.cssText = "max-width:320px;white-space:normal;overflow-wrap:anywhere;font-size:13px";
    for (const [text, bold] of lines) {
      const line = document.createElement(bold ? "b" : "div");
      line.style.display = "block";
      line.textContent = text;
      box.append(line);
    }
    return box;
  }
  function theme() {
    const night = dark.matches && !paper.matches;
    return { ink: night ? "#e6e8eb" : "#1c1f23", dim: night ? "#a0a8b2" : "#5a626c",
      line: night ? "#343a42" : "#d9dde2", paper: night ? "#15181c" : "#ffffff",
      panel: night ? "#1d2126" : "#ffffff", device: night ? "#5aa9e6" : BLUE };
  }
  function axes(look, unit, narrow) {
    const common = { axisLine: { lineStyle: { color: look.dim } },
      axisLabel: { color: look.dim, showMaxLabel: false, hideOverlap: true },
      nameTextStyle: { color: look.dim }, splitLine: { lineStyle: { color: look.line } } };
    return {
      x: { ...common, type: "value", name: unit, nameLocation: "middle", nameGap: 26, min: 0,
        splitLine: { show: false } },
      y: { ...common, type: "value", min: 0, name: narrow ? "" : "bytes", nameLocation: "end",
        axisLabel: { color: look.dim, formatter: axisBytes } },
    };
  }
  function frame(look, narrow, extra) {
    return {
      animation: false, textStyle: { color: look.ink, fontFamily: "inherit" }, aria: { enabled: true },
      legend: { top: 0, left: 0, type: "scroll", textStyle: { color: look.ink },
        pageTextStyle: { color: look.dim }, pageIconColor: look.dim, itemGap: narrow ? 8 : 14 },
      grid: { left: narrow ? 62 : 74, right: narrow ? 12 : 24, top: 46, bottom: 92 },
      dataZoom: [{ type: "inside", filterMode: "none" },
        { type: "slider", filterMode: "none", bottom: 8, height: 24, showDetail: false,
          borderColor: look.line, textStyle: { color: look.dim } }],
      tooltip: { confine: true, backgroundColor: look.panel, borderColor: look.line,
        textStyle: { color: look.ink }, ...extra },
    };
  }
  function line(name, data, colour, more) {
    return { name: name, type: "line", data: data, showSymbol: false, symbolSize: 6,
      lineStyle: { width: 1.8, color: colour }, itemStyle: { color: colour },
      emphasis: { disabled: true }, ...more };
  }
  // The limit in force over time, as steps; left out where it is so far above that it would
  // press the curve to the ground.
  function limitLine(run, unit, most) {
    if (!run.limit.length || run.limit.some(([, size]) => size > 3 * most)) return [];
    const points = run.limit.map(([at, size]) => [at / unit, size]);
    points[0][0] = 0;
    points.push([run.duration / unit, points[points.length - 1][1]]);
    return [line("limit", points, RED, { step: "end", lineStyle: { width: 1.5, color: RED, type: "dashed" } })];
  }
  function height(run, at) {
    let place = 0;
    while (place + 1 < run.seconds.length && run.seconds[place + 1] <= at) place++;
    for (; place >= 0; place--) {  // where a process had just ended, the last that was known
      const value = run.device[place] === null ? run.host[place] : run.device[place];
      if (value !== null && value !== undefined) return value;
    }
    return 0;
  }
  function most(values) { return values.reduce((high, value) => Math.max(high, value || 0), 0); }

  const draw = {
    memory(run, look, narrow) {
      const [unit, unitName] = clock(run.duration);
      const points = (values) => run.seconds.map((at, i) => [at / unit, values[i]]);
      const known = run.device.some((value) => value !== null);
      const highest = Math.max(most(run.device), most(run.host));
      const series = [];
      if (known) series.push(line("device", points(run.device), look.device, {
        areaStyle: { color: look.device, opacity: 0.12 } }));
      series.push(line("process (main memory)", points(run.host), ORANGE));
      series.push(...limitLine(run, unit, highest));
      const slices = run.slices.map(([at, batch, size]) => [at / unit, Math.ceil(batch / size)]);
      if (slices.length) {
        slices.unshift([0, slices[0][0] > 0 ? null : slices[0][1]]);
        slices.push([run.duration / unit, slices[slices.length - 1][1]]);
        series.push(line("slices a batch", slices, GREEN, { step: "end", yAxisIndex: 1,
          lineStyle: { width: 1.5, color: GREEN, type: "dotted" } }));
      }
      for (const [kind, [symbol, colour, label]] of Object.entries(EVENTS)) {
        const marks = run.happenings.filter(([, name]) => name === kind)
          .map(([at, , text]) => ({ value: [at / unit, height(run, at)], text: text }));
        if (marks.length) series.push({ name: label, type: "scatter", data: marks, symbol: symbol,
          symbolSize: { snapshot_taken: 8, run_ended: 8, oom: 16 }[kind] || 13,
          z: kind === "oom" || kind === "cannot_fit" ? 8 : 5,
          itemStyle: { color: colour, borderColor: look.paper, borderWidth: 1 } });
      }
      const { x, y } = axes(look, "time (" + unitName + ")", narrow);
      x.max = run.duration / unit || 1;
      x.axisLabel.formatter = (value) => String(+value.toFixed(2));
      const count = { type: "value", name: narrow ? "" : "slices", min: 0, minInterval: 1,
        max: ({ max }) => max + 1, show: slices.length > 0, axisLabel: { color: GREEN }, nameTextStyle: { color: look.dim },
        splitLine: { show: false } };
      // Beside the values at a moment, what happened near to it: marks are small to hit.
      const near = (at) => run.happenings.filter(([when]) =>
        Math.abs(when / unit - at) <= 0.01 * x.max).slice(0, 4)
        .map(([, name, text]) => [(EVENTS[name] || [0, 0, name])[2] + ": " + text, false]);
      const base = frame(look, narrow, { trigger: "axis", formatter: (all) => tip([
        [all[0].value[0].toFixed(1) + " " + unitName, true],
        ...all.filter((at) => at.value[1] !== null && at.data.text === undefined)
          .map((at) => [at.seriesName + ": " + (at.seriesName.startsWith("slices") ? at.value[1] :
            bytes(at.value[1])), false]),
        ...near(all[0].value[0])]) });
      if (slices.length) base.grid.right = narrow ? 34 : 50;
      return { ...base, xAxis: x, yAxis: [y, count], series: series };
    },
    comparison(_, look, narrow) {
      const longest = Math.max(...runs.map((run) => run.duration));
      const [unit, unitName] = clock(longest);
      const series = [];
      runs.forEach((run, number) => {
        const known = run.device.some((value) => value !== null);
        const values = known ? run.device : run.host;
        series.push(line("AB"[number] + ": " + run.name, run.seconds.map((at, i) =>
          [at / unit, values[i]]), [look.device, ORANGE][number], { lineStyle: { width: 1.8,
          color: [look.device, ORANGE][number], type: ["solid", "dashed"][number] } }));
      });
      const { x, y } = axes(look, "time since the start (" + unitName + ")", narrow);
      x.max = longest / unit || 1;
      x.axisLabel.formatter = (value) => String(+value.toFixed(2));
      const base = frame(look, narrow, { trigger: "axis", formatter: (all) => tip(all.map((at) =>
        [at.seriesName + ": " + (at.value[1] === null ? "" : bytes(at.value[1])), false])) });
      return { ...base, xAxis: x, yAxis: y, series: series };
    },
    step(run, look, narrow) {
      const step = run.step, stacked = step.parts.length > 0;
      const peak = step.total.indexOf(most(step.total));
      const series = [];
      if (stacked) step.names.forEach((name, k) => {
        const values = step.parts.map((parts, i) => [i, parts[k]]);
        if (values.some(([, size]) => size > 0)) series.push(line(name, values, PARTS[name], {
          stack: "step", step: "end", areaStyle: { color: PARTS[name], opacity: 0.85 },
          lineStyle: { width: 0.5, color: PARTS[name] } }));
      });
      series.push(line("all", step.total.map((size, i) => [i, size]), look.ink, { step: "end",
        lineStyle: { width: 1, color: look.ink }, z: 4, markPoint: { symbol: "pin", symbolSize: 12,
          symbolOffset: [0, -5], itemStyle: { color: look.ink }, label: { show: true,
            position: peak > step.total.length / 2 ? "left" : "right", color: look.ink,
            formatter: () => "peak " + bytes(step.total[peak]) },
          data: [{ coord: [peak, step.total[peak]] }] } }));
      const highest = step.total[peak];
      if (run.budget && run.budget < 3 * highest) series.push(line("limit",
        [[0, run.budget], [step.total.length - 1, run.budget]], RED,
        { lineStyle: { width: 1.5, color: RED, type: "dashed" } }));
      const { x, y } = axes(look, "ops of the step, in order", narrow);
      x.max = Math.max(1, step.total.length - 1);
      const base = frame(look, narrow, { trigger: "axis", axisPointer: { type: "line" },
        formatter: (all) => {
          const i = all[0].value[0];
          const lines = [[step.ops[i], true]];
          if (step.layers[i]) lines.push(["layer " + step.layers[i], false]);
          lines.push(["in use " + bytes(step.total[i]), false]);
          if (stacked) step.names.forEach((name, k) => {
            if (step.parts[i][k]) lines.push([name + " " + bytes(step.parts[i][k]), false]);
          });
          return tip(lines);
        } });
      base.legend.icon = "roundRect";
      return { ...base, xAxis: x, yAxis: y, series: series };
    },
    layers(run, look, narrow) {
      const all = run.layers.reduce((sum, [, size]) => sum + size, 0);
      // One hue, lighter with the bytes: area tells the size, colour only sets neighbours apart.
      const shades = ["#004f7c", "#005f94", "#0072B2", "#2a86bd", "#4b97c6"];
      return {
        animation: false, aria: { enabled: true },
        tooltip: { confine: true, backgroundColor: look.panel, borderColor: look.line,
          textStyle: { color: look.ink }, formatter: (at) => tip([[at.name, true],
            [bytes(at.value) + ", " + (100 * at.value / all).toFixed(1) + " %", false]]) },
        series: [{ type: "treemap", roam: false, nodeClick: false, breadcrumb: { show: false },
          left: 0, right: 0, top: 4, bottom: 4, visibleMin: 40,
          itemStyle: { borderColor: look.paper, borderWidth: 1, gapWidth: 1 },
          label: { show: true, color: "#ffffff", fontSize: 12, lineHeight: 17, overflow: "truncate",
            formatter: (at) => at.name + "\n" + bytes(at.value) },
          data: run.layers.map(([name, size], i) => ({ name: name, value: size,
            itemStyle: { color: shades[i % shades.length] } })) }],
      };
    },
  };

  function drawAll() {
    const look = theme();
    for (const { chart, run, kind, box } of charts)
      chart.setOption(draw[kind](run, look, box.clientWidth < 560), true);
  }
  for (const box of document.querySelectorAll("[data-chart]")) {
    const article = box.closest("article");
    const run = article ? runs[Number(article.dataset.run)] : null;
    charts.push({ chart: echarts.init(box), run: run, kind: box.dataset.chart, box: box });
  }
  drawAll();
  let waiting = 0;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { for (const { chart } of charts) chart.resize(); drawAll(); }, 100);
  });
  dark.addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
    drawAll();
    for (const { chart } of charts) chart.resize();
  });
  paper.addEventListener("change", drawAll);
  document.documentElement.dataset.drawn = "yes";
})();
