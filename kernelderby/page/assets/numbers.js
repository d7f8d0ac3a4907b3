// How a number is written: kernelderby/report/numbers.py, word for word. A test holds them against each other.
const NOTHING = "–";

// A fixed number of decimals, exact halves to the even digit as Python has it. Only what is whole in halves, quarters
// ... can be such a half; toFixed, which rounds those up, has the rest right.
function digits(value, count) {
  const scaled = value * 10 ** count;
  if (Number.isInteger(value * 2 ** (count + 1)) && Math.abs(scaled % 1) === 0.5) return (2 * Math.round(scaled / 2) / 10 ** count).toFixed(count);
  return value.toFixed(count);
}

// Like Python's :.Ng: as many digits, no zeros at the end, an exponent only for very small ones and very large ones.
function general(value, count) {
  if (value === 0) return "0";
  const exponent = Number(value.toExponential(count - 1).split("e")[1]);
  const strip = (words) => (words.includes(".") ? words.replace(/0+$/, "").replace(/\.$/, "") : words);
  if (exponent >= -4 && exponent < count) return strip(digits(value, count - 1 - exponent));
  const [mantissa, power] = value.toExponential(count - 1).split("e");
  return `${strip(mantissa)}e${power[0]}${power.slice(1).padStart(2, "0")}`;
}

const or = (write) => (value) => (value === null || value === undefined ? NOTHING : write(value));
const microseconds = or((value) => (value >= 1000 ? digits(value, 0) : digits(value, value >= 10 ? 1 : 2)));
const floorUs = or((value) => (value >= 1000 ? digits(value, 0) : general(value, 4)));
const milliseconds = or((us) => digits(us / 1000, us < 10000 ? 3 : 1));
const factor = or((value) => (value >= 100 ? digits(value, 0) : digits(value, value >= 10 ? 1 : 2)));
const percent = or((share) => (share >= 0.001 || share === 0 ? `${digits(100 * share, 1)}%` : `${general(100 * share, 1)}%`));
const shortPercent = or((share) => `${digits(100 * share, share >= 0.1 ? 0 : 1)}%`);
const intensity = or((value) => (value >= 1000 ? digits(value, 0) : general(value, 3)));
const day = (moment) => moment.slice(0, 10);
const days = (first, last) => (day(first) === day(last) ? day(first) : `${day(first)} to ${day(last)}`);

// "1.38 [1.37, 1.39]": a ratio with its interval.
function ratio(interval) {
  if (!interval) return NOTHING;
  const [low, high] = [interval[INTERVAL.low], interval[INTERVAL.high]];
  const between = low === null ? "" : ` [${factor(low)}, ${factor(high)}]`;
  return factor(interval[INTERVAL.value]) + between;
}
