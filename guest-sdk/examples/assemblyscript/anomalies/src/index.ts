// Finds what stands out in a series of measurements: values far from the median of those around them, in units of the
// median deviation there (Hampel's filter), which a few outliers do not shift as they shift a mean.
import { Task, fail, log, main } from "./heddle";

@json
class Params {
  values: f64[] = [];
  /** How many neighbours on each side are looked at. */
  around: i32 = 5;
  /** How many deviations from the median are too many. */
  deviations: f64 = 3.0;
}

@json
class Anomaly {
  index: i32 = 0;
  value: f64 = 0.0;
  expected: f64 = 0.0;
}

@json
class Output {
  anomalies: Anomaly[] = [];
}

/** Of normally distributed values, the standard deviation is this many median deviations. */
const TO_SIGMA: f64 = 1.4826;

function median(values: f64[]): f64 {
  const sorted = values.slice().sort();
  const middle = sorted.length >> 1;
  return sorted.length & 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2.0;
}

main<Params, Output>((task: Task, params: Params): Output => {
  if (params.around < 1) fail("around is less than 1");
  const values = params.values;
  const output = new Output();
  for (let i = 0; i < values.length; i++) {
    const near = values.slice(max(0, i - params.around), min(values.length, i + params.around + 1));
    const expected = median(near);
    const deviations: f64[] = [];
    for (let j = 0; j < near.length; j++) deviations.push(Math.abs(near[j] - expected));
    if (Math.abs(values[i] - expected) > params.deviations * TO_SIGMA * median(deviations)) {
      output.anomalies.push({ index: i, value: values[i], expected });
    }
  }
  log(`${output.anomalies.length} of ${values.length} values stand out`);
  return output;
});
