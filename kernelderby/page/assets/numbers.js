// How a number is written: kernelderby/report/numbers.py, word for word. A test holds them against each other.
const NOTHING = "–";
const digits = (value, count) => value.toFixed(count);

// Like Python's :.Ng: as many digits, no zeros at the end, an exponent only for very small ones.
function general(value, count) {
  if (value === 0) return "0";
  const exponent = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(count)))));
  if (exponent < -4) {
    const [mantissa, power] = value.toExponential(count - 1).split("e");
    const short = mantissa.includes(".") ? mantissa.replace(/0+$/, "").replace(/\.$/, "") : mantissa;
    return `${short}e-${String(Math.abs(Number(power))).padStart(2, "0")}`;
  }
  return String(Number(value.toPrecision(count)));
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
