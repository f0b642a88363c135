// Sliders of a plan: the likely case with another network, other epochs, and another price. Without
// this script, the table is complete.
{
  const box = document.querySelector(".sliders");
  const factors = JSON.parse(box.dataset.factors);
  const inputs = Object.fromEntries([...box.querySelectorAll("input")].map((one) => [one.id, one]));
  const names = [...document.querySelectorAll("table.plan th")].map((cell) => cell.textContent);
  const rows = [...document.querySelectorAll("table.plan tr[data-point]")];
  const units = [[1e-4, 1e6, "µs"], [0.0995, 1e3, "ms"], [99.5, 1, "s"], [99.5 * 60, 1 / 60, "min"],
    [47.5 * 3600, 1 / 3600, "h"], [Infinity, 1 / 86400, "d"]];
  const time = (seconds) => {
    const [, factor, unit] = units.find(([limit]) => seconds < limit);
    const value = seconds * factor;
    return `${value < 9.95 ? value.toPrecision(2) : Math.round(value).toLocaleString("en")} ${unit}`;
  };
  const say = (id, text) => { box.querySelector(`output[for=${id}]`).textContent = text; };
  const put = (row, name, text) => {
    const place = names.indexOf(name);
    if (place >= 0) row.cells[place].textContent = text;
  };
  const update = () => {
    const level = +inputs.network.value;
    const longer = 2 ** +inputs.epochs.value;
    const price = 2 ** +inputs.price.value;
    say("network", `${factors[level]}×`);
    say("epochs", `${longer.toPrecision(2)}×`);
    say("price", `${price.toPrecision(2)}×`);
    for (const row of rows) {
      const one = JSON.parse(row.dataset.point);
      const epoch = one.perEpoch * one.steps[level];
      const total = longer * one.epochs * epoch + one.beside;
      put(row, "step", time(one.steps[level]));
      put(row, "epoch", time(epoch));
      put(row, "to the end", time(total));
      if (one.price !== null) put(row, "cost", (price * one.price * total / 3600).toPrecision(3));
    }
  };
  box.hidden = false;
  box.addEventListener("input", update);
}
