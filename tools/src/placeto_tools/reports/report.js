"use strict";
// Draws what the page holds as data. Text of the data goes into the page as text, never as markup.
(() => {
const {problems, made_by} = JSON.parse(document.getElementById("data").textContent);
const plotting = Bokeh.Plotting;
const INK = "#7d828a"; // is read on white and on black
const PATH = "#e0218a";
const at = id => document.getElementById(id);
const range = count => Array.from({length: count}, (_, index) => index);

const number = new Intl.NumberFormat("en"); // one for all: each toLocaleString looks for its own
const scaled = (value, units) => {
  if (value === null) return "cannot run";
  const [name, size] = units.find(([, size]) => Math.abs(value) >= size) || units[units.length - 1];
  return `${number.format((value / size).toPrecision(4))} ${name}`;
};
const seconds = value => scaled(value, [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]);
const bytes = value => scaled(value, [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]]);
const share = value => `${(100 * value).toFixed(1)} %`;

let problem = problems[0];
let level = 0;
let opened = []; // the groups that were opened, one for each level that was left

function choices(select, names, chosen, changed) {
  select.replaceChildren(...names.map((name, index) => new Option(name, index)));
  select.selectedIndex = chosen;
  select.onchange = () => changed(select.selectedIndex);
}

function table(element, head, rows) {
  element.replaceChildren(...[head, ...rows].map((cells, row) => {
    const line = document.createElement("tr");
    line.append(...cells.map(text => {
      const cell = document.createElement(row ? "td" : "th");
      cell.textContent = text;
      return cell;
    }));
    return line;
  }));
}

function figure(options, tools, tooltips) {
  const plot = plotting.figure({
    tools: `${tools},reset,save`, sizing_mode: "stretch_width", background_fill_color: null,
    border_fill_color: null, outline_line_color: INK, ...options,
  });
  for (const axis of [...plot.below, ...plot.left]) {
    axis.setv?.({
      axis_label_text_color: INK, major_label_text_color: INK, axis_line_color: INK,
      major_tick_line_color: INK, minor_tick_line_color: null,
    });
  }
  for (const grid of plot.center) grid.setv?.({grid_line_color: INK, grid_line_alpha: 0.2});
  plot.toolbar.logo = null;
  if (tooltips) plot.add_tools(new Bokeh.HoverTool({tooltips, renderers: []}));
  const wheel = plot.toolbar.tools.find(tool => tool.type.endsWith("WheelZoomTool"));
  if (wheel) plot.toolbar.active_scroll = wheel;
  return plot;
}

function hovered(plot, ...renderers) {
  plot.toolbar.tools.find(tool => tool.type.endsWith("HoverTool")).renderers = renderers;
}

function styled_legend(plot) {
  plot.legend.setv({
    background_fill_alpha: 0, border_line_color: null, label_text_color: INK, orientation: "horizontal",
  });
}

function take_away(view) {
  const {documents} = Bokeh, held = documents.indexOf(view.model.document);
  view.remove();
  if (held >= 0) documents.splice(held, 1); // else all that was ever drawn stays in memory
}

const shown = new Map(); // views by place: one is taken away before the next is drawn there
async function put(place, model) {
  const before = shown.get(place);
  const token = {};
  shown.set(place, token);
  if (before?.remove) take_away(before);
  at(place).replaceChildren();
  const view = await plotting.show(model, at(place));
  if (shown.get(place) === token) shown.set(place, view);
  else take_away(view);
}

// The tables of placers, and of the devices of one.
const better = (one, other) => one.fits === other.fits ? one.cost < other.cost : one.fits;
const best_of = placers => range(placers.length).reduce(
  (best, index) => better(placers[index], placers[best]) ? index : best, 0);

function draw_table() {
  const {placers, devices, op_names, levels, bounds, bounded_groups} = problem, best = placers[best_of(placers)];
  const [name, bound] = Object.entries(bounds).reduce((one, other) => other[1] > one[1] ? other : one, ["", 0]);
  at("summary").textContent = `${problem.title}: ${number.format(op_names.length)} ops, ` +
    `${number.format(levels[levels.length - 1].names.length)} groups, ${devices.length} devices`;
  const over = placer => bound > 0 && placer.fits ? share(placer.runtime / bound - 1) : "";
  at("verdict").textContent = (best.fits ? `${best.title} is the fastest: ${seconds(best.runtime)} a step (simulated)` :
    "No placement here fits the memory") + (bound > 0 ? `. The lower bound in ${number.format(bounded_groups)} groups is ${seconds(bound)} (${name}).` : ".");
  const columns = [
    ["placer", placer => placer.title],
    ["simulated runtime", placer => seconds(placer.runtime) + (placer.fits ? "" : ", out of memory")],
    ["over the bound", over],
    ["peak memory", placer => bytes(Math.max(...placer.peak_memory))],
    ["evaluations", placer => placer.evaluations === null ? "" : number.format(placer.evaluations)],
    ["CPU time", placer => placer.seconds === null ? "" : seconds(placer.seconds)],
  ].filter(([, text]) => placers.some(text)); // placements of files have no search
  table(at("placers"), columns.map(([head]) => head), placers.map(placer => columns.map(([, text]) => text(placer))));
}

function draw_devices(placer) {
  const head = [placer.title, "peak memory", "of", "computing", "waiting", "sending"];
  table(at("devices"), head, problem.devices.map((device, index) => [
    device.name, bytes(placer.peak_memory[index]), bytes(device.memory_bytes),
    ...[placer.busy, placer.waiting, placer.sending].map(times => seconds(times[index])),
  ]));
}

// The graph of groups.
function visible_groups(groups) {
  const parent = opened.length ? opened[opened.length - 1] : null;
  return range(groups.names.length).filter(group => parent === null || groups.parents[group] === parent);
}

function draw_graph() {
  const placer = problem.placers[at("graph-placer").selectedIndex];
  const groups = problem.levels[level];
  const devices = placer.step.group_devices[level], on_path = placer.step.group_seconds_on_path[level];
  const visible = visible_groups(groups), among = new Set(visible);
  const text = at("search").value.trim().toLowerCase();
  const matches = group => [groups.names[group], groups.types[group], groups.scopes[group]]
    .some(words => words.toLowerCase().includes(text));
  const found = new Set(text ? visible.filter(matches) : visible);
  at("found").textContent = text ? `${found.size} of ${visible.length} groups` : "";
  at("out").disabled = !opened.length;
  const here = group => groups.seconds[group][devices[group]] || 0;
  const most = visible.reduce((best, group) => Math.max(best, here(group)), 1e-30);
  const plot = figure(
    {height: 520, x_axis_label: "layer"}, "pan,wheel_zoom,box_zoom,tap",
    [["group", "@name"], ["on", "@device"], ["ops", "@ops"], ["types", "@types"],
     ["scopes", "@scopes"], ["time", "@times"], ["on the critical path", "@path"],
     ["output", "@output"], ["parameters", "@parameters"]],
  );
  const edges = range(groups.edges.length).filter(
    edge => among.has(groups.edges[edge][0]) && among.has(groups.edges[edge][1]));
  const end = (edge, side, axis) => groups[axis][groups.edges[edge][side]];
  const heaviest = edges.reduce((best, edge) => Math.max(best, groups.edge_bytes[edge]), 1);
  plot.segment({field: "x0"}, {field: "y0"}, {field: "x1"}, {field: "y1"}, {
    source: new Bokeh.ColumnDataSource({data: {
      x0: edges.map(edge => end(edge, 0, "x")), y0: edges.map(edge => end(edge, 0, "y")),
      x1: edges.map(edge => end(edge, 1, "x")), y1: edges.map(edge => end(edge, 1, "y")),
      width: edges.map(edge => 0.4 + 3 * groups.edge_bytes[edge] / heaviest),
      alpha: edges.map(edge => devices[groups.edges[edge][0]] === devices[groups.edges[edge][1]] ? 0.4 : 1),
    }}),
    line_color: INK, line_width: {field: "width"}, line_alpha: {field: "alpha"},
  });
  const source = new Bokeh.ColumnDataSource({data: {
    x: visible.map(group => groups.x[group]), y: visible.map(group => groups.y[group]),
    name: visible.map(group => groups.names[group]),
    device: visible.map(group => problem.devices[devices[group]].name),
    colour: visible.map(group => problem.devices[devices[group]].colour),
    size: visible.map(group => 6 + 20 * Math.sqrt(here(group) / most)),
    alpha: visible.map(group => found.has(group) ? 1 : 0.12),
    ring: visible.map(group => on_path[group] > 0 ? 2.5 : 0.5),
    ops: visible.map(group => groups.ops[group]), types: visible.map(group => groups.types[group]),
    scopes: visible.map(group => groups.scopes[group]),
    times: visible.map(group => problem.devices.map(
      (device, index) => `${device.name} ${seconds(groups.seconds[group][index])}`).join(", ")),
    path: visible.map(group => seconds(on_path[group])),
    output: visible.map(group => bytes(groups.output_bytes[group])),
    parameters: visible.map(group => bytes(groups.parameter_bytes[group])),
  }});
  hovered(plot, plot.scatter({field: "x"}, {field: "y"}, {
    source, size: {field: "size"}, fill_color: {field: "colour"}, fill_alpha: {field: "alpha"},
    line_color: INK, line_width: {field: "ring"}, line_alpha: {field: "alpha"},
    nonselection_fill_alpha: {field: "alpha"}, nonselection_line_alpha: {field: "alpha"},
  }));
  source.selected.properties.indices.change.connect(() => {
    const [row] = source.selected.indices;
    if (row !== undefined && level + 1 < problem.levels.length) open(visible[row]);
  });
  plot.left[0].visible = false;
  plot.below[0].ticker = new Bokeh.FixedTicker({ticks: []}); // numbers of layers say nothing
  legend(devices, visible);
  return put("graph", plot);
}

function legend(devices, visible) {
  name_colours(at("legend"), problem.devices.map((device, index) => {
    const count = visible.filter(group => devices[group] === index).length;
    return [device.colour, `${device.name}: ${number.format(count)} groups`];
  }));
}

function name_colours(element, pairs) {
  element.replaceChildren(...pairs.flatMap(([colour, name]) => {
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = colour;
    return [swatch, document.createTextNode(name)];
  }));
}

function show_level(number, path) {
  level = number;
  opened = path;
  at("level").selectedIndex = level;
  return draw_graph();
}
const open = group => show_level(level + 1, [...opened, group]);
at("out").onclick = () => show_level(level - 1, opened.slice(0, -1));
at("search").oninput = () => draw_graph();

// Steps: devices and links above, memory below, for two placers on one axis.
// Bars narrower than two pixels are drawn together, as far as four pixels: a chart has no more
// bars than can be seen, however many ops a step has.
const NARROW = 2;

function bars_of(step) {
  const count = problem.devices.length, num_ops = step.op_start.length;
  const row = [...step.op_device, ...step.transfer_link.map(link => count + link)];
  const on_path = new Set([...step.path_ops, ...step.path_transfers.map(index => num_ops + index)]);
  const left = [...step.op_start, ...step.transfer_start];
  const rows = range(count + problem.links.length).map(() => []);
  row.forEach((number, bar) => rows[number].push(bar));
  for (const members of rows) members.sort((one, other) => left[one] - left[other]);
  return {
    step, num_ops, left, right: [...step.op_end, ...step.transfer_end], on_path, rows,
    kind: [...problem.op_phases, ...step.transfer_link.map(() => problem.kinds.length - 1)],
    path_rows: rows.map(members => members.filter(bar => on_path.has(bar))),
  };
}

function runs_in_view({left, right}, members, {start, end}, pixel) {
  let low = 0, high = members.length; // a row's bars end in the order in which they start
  while (low < high) {
    const middle = (low + high) >> 1;
    if (right[members[middle]] < start) low = middle + 1; else high = middle;
  }
  const runs = [];
  for (; low < members.length && left[members[low]] <= end; low++) {
    const bar = members[low], run = runs[runs.length - 1];
    const narrow = right[bar] - left[bar] < NARROW * pixel;
    if (narrow && run?.narrow && left[bar] - run.right < pixel
        && right[bar] - run.left < 2 * NARROW * pixel) {
      run.bars.push(bar);
      run.right = Math.max(run.right, right[bar]);
    } else runs.push({narrow, bars: [bar], left: left[bar], right: right[bar]});
  }
  return runs;
}

function bar_columns(bars, view, pixel) {
  const runs = bars.rows.flatMap((members, row) =>
    runs_in_view(bars, members, view, pixel).map(run => ({...run, row})));
  const took = bar => bars.right[bar] - bars.left[bar];
  const longest = runs.map(run => run.bars.reduce((one, other) => took(other) > took(one) ? other : one));
  const is_op = bar => bar < bars.num_ops;
  const tensor = bar => bars.step.transfer_tensor[bar - bars.num_ops];
  const name = bar => is_op(bar) ? problem.op_names[bar] :
    `${problem.op_names[problem.tensor_producers[tensor(bar)]]} to ` +
    problem.devices[bars.step.transfer_destination[bar - bars.num_ops]].name;
  const detail = bar => is_op(bar) ? problem.op_types[bar] : bytes(problem.tensor_bytes[tensor(bar)]);
  const kind_of = run => { // that of most of the time
    const taken = problem.kinds.map(() => 0);
    for (const bar of run.bars) taken[bars.kind[bar]] += took(bar);
    return taken.indexOf(Math.max(...taken));
  };
  const others = run => run.bars.length < 2 ? "" :
    ` and ${number.format(run.bars.length - 1)} more ${run.row < problem.devices.length ? "ops" : "transfers"}`;
  return {
    left: runs.map(run => run.left), right: runs.map(run => run.right),
    bottom: runs.map(run => run.row - 0.4), top: runs.map(run => run.row + 0.4),
    colour: runs.map(run => problem.kind_colours[kind_of(run)]),
    what: runs.map((run, index) => name(longest[index]) + others(run)),
    detail: longest.map(detail),
    takes: runs.map(run => seconds(run.bars.reduce((total, bar) => total + took(bar), 0))),
    path: runs.map(run => run.bars.some(bar => bars.on_path.has(bar)) ? "yes" : "no"),
  };
}

function path_columns(bars, view, pixel) {
  const runs = bars.path_rows.flatMap((members, row) =>
    runs_in_view(bars, members, view, pixel).map(run => ({...run, row})));
  return {
    x0: runs.map(run => run.left), x1: runs.map(run => run.right), y: runs.map(run => run.row + 0.44),
  };
}

function chart(placer, x_range) {
  const names = [...problem.devices.map(device => device.name), ...problem.links];
  const plot = figure(
    {height: 120 + 26 * names.length, x_range, y_range: [names.length - 0.5, -0.5],
     title: `${placer.title}: ${seconds(placer.runtime)} (simulated)`},
    "xpan,xwheel_zoom,xbox_zoom",
    [["what", "@what"], ["", "@detail"], ["takes", "@takes"], ["on the critical path", "@path"]],
  );
  plot.title.text_color = INK;
  const axis = plot.left[0];
  axis.ticker = new Bokeh.FixedTicker({ticks: range(names.length)});
  axis.major_label_overrides = new Map(names.map((name, index) => [index, name]));
  const bars = bars_of(placer.step);
  const source = new Bokeh.ColumnDataSource(), path = new Bokeh.ColumnDataSource();
  const draw_view = () => {
    const pixel = (x_range.end - x_range.start) / at("steps").clientWidth;
    source.data = bar_columns(bars, x_range, pixel);
    path.data = path_columns(bars, x_range, pixel);
  };
  draw_view();
  x_range.change.connect(draw_view);
  hovered(plot, plot.quad({
    left: {field: "left"}, right: {field: "right"}, bottom: {field: "bottom"}, top: {field: "top"},
    source, fill_color: {field: "colour"}, line_color: null,
  }));
  plot.segment({field: "x0"}, {field: "y"}, {field: "x1"}, {field: "y"},
    {source: path, line_color: PATH, line_width: 3});
  return plot;
}

function memory(placer, x_range) {
  const plot = figure({height: 150, x_range, y_axis_label: "memory, GB", x_axis_label: "seconds"},
    "xpan,xwheel_zoom,xbox_zoom");
  problem.devices.forEach((device, index) => {
    const {times, bytes: held} = placer.step.memory[index];
    plot.step(times, held.map(value => value / 1e9),
      "after", {line_color: device.colour, line_width: 1.5, legend_label: device.name});
  });
  styled_legend(plot);
  return plot;
}

function draw_steps() {
  const chosen = ["upper", "lower"].map(id => problem.placers[at(id).selectedIndex]);
  const longest = Math.max(...chosen.map(placer => placer.runtime)) || 1;
  const x_range = new Bokeh.Range1d({start: 0, end: longest, bounds: [0, longest]});
  draw_devices(chosen[0]);
  draw_path(chosen[0]);
  const plots = chosen.flatMap(placer => [chart(placer, x_range), memory(placer, x_range)]);
  return put("steps", new Bokeh.Column({children: plots, sizing_mode: "stretch_width"}));
}

function draw_path(placer) {
  const step = placer.step;
  const rows = [
    ...step.path_ops.map(op => ["op", problem.op_names[op],
      problem.devices[step.op_device[op]].name, step.op_start[op], step.op_end[op] - step.op_start[op]]),
    ...step.path_transfers.map((index, place) => ["transfer",
      problem.op_names[problem.tensor_producers[step.transfer_tensor[index]]],
      problem.links[step.transfer_link[index]], step.transfer_start[index], step.path_transfer_seconds[place]]),
  ];
  const sum = kind => rows.filter(row => row[0] === kind).reduce((total, row) => total + row[4], 0);
  const rest = Math.max(0, placer.runtime - sum("op") - sum("transfer"));
  at("path-summary").textContent = `${placer.title}: ${number.format(rows.length)} ops and transfers, ` +
    `${seconds(sum("op"))} of ops, ${seconds(sum("transfer"))} of transfers, ${seconds(rest)} of overheads; the longest:`;
  rows.sort((one, other) => other[4] - one[4]);
  table(at("path"), ["", "name", "on", "from", "takes"],
    rows.slice(0, 20).map(([kind, name, where, start, long]) => [kind, name, where, seconds(start), seconds(long)]));
}

// The curves of all placers, each to a dot at its end, and the bound below them.
function draw_curves() {
  const searched = problem.placers.filter(placer => placer.curve.some(row => row[1] !== null));
  const bound = Math.max(0, ...Object.values(problem.bounds));
  const by_time = searched.filter(placer => placer.seconds && placer.evaluations);
  if (!searched.length) {
    at("curves").textContent = "Placements of files have no curves; a comparison of placers has.";
    return put_nothing("curves");
  }
  const one = (label, placers, scale) => {
    const plot = figure({height: 300, x_axis_label: label, y_axis_label: "best simulated runtime, s", y_axis_type: "log"},
      "pan,wheel_zoom,box_zoom");
    placers.forEach((placer, index) => {
      const known = placer.curve.filter(row => row[1] !== null);
      const colour = problem.curve_colours[index % problem.curve_colours.length];
      const x = known.map(row => row[0] * scale(placer)), y = known.map(row => row[1]);
      plot.step(x, y, "after", {line_color: colour, line_width: 2, legend_label: placer.title});
      plot.scatter(x.slice(-1), y.slice(-1), {size: 7, color: colour, legend_label: placer.title});
    });
    const ends = placers.map(placer => placer.curve[placer.curve.length - 1][0] * scale(placer));
    if (bound > 0) plot.line([0, Math.max(...ends)], [bound, bound],
      {line_color: INK, line_dash: "dashed", line_width: 2, legend_label: "lower bound"});
    styled_legend(plot);
    plot.legend.setv({
      orientation: "vertical", ncols: Math.ceil(placers.length / 8), location: "top_right", click_policy: "hide",
    });
    return plot;
  };
  const plots = [one("placements evaluated", searched, () => 1)];
  if (by_time.length) plots.push(one("seconds, at the mean rate of each search", by_time,
    placer => placer.seconds / placer.evaluations));
  return put("curves", new Bokeh.Column({children: plots, sizing_mode: "stretch_width"}));
}

function put_nothing(place) {
  const view = shown.get(place);
  if (view?.remove) take_away(view);
  shown.delete(place);
}

function show_problem(index) {
  problem = problems[index];
  const titles = problem.placers.map(placer => placer.title), best = best_of(problem.placers);
  choices(at("graph-placer"), titles, best, draw_graph);
  choices(at("upper"), titles, best, draw_steps);
  choices(at("lower"), titles, best > 0 ? 0 : titles.length - 1, draw_steps);
  choices(at("level"), problem.levels.map(groups => `${groups.names.length} groups`), 0,
    number => show_level(number, []));
  draw_table();
  name_colours(at("kinds"), [
    ...problem.kinds.map((kind, index) => [problem.kind_colours[index], kind]), [PATH, "critical path"],
  ]);
  return Promise.all([show_level(0, []), draw_steps(), draw_curves()]);
}

at("made-by").textContent = made_by;
choices(at("problem"), problems.map(each => each.title), 0, show_problem);
at("problem-label").hidden = problems.length < 2;
show_problem(0).then(() => { document.body.dataset.drawn = "yes"; });
})();
