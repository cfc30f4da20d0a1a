// {{name}}: a task script for Heddle, as a WASI command. `heddle.ts` says what there is.
import { Task, fail, log, main } from "./heddle";

/** What the task is given. */
@json
class Params {
  /** Who is greeted. */
  name: string = "world";
}

/** What it puts out. */
@json
class Output {
  greeting: string = "";
}

main<Params, Output>((task: Task, params: Params): Output => {
  if (params.name == "") fail("name is empty");
  log(`greeting ${params.name}, attempt ${task.attempt}`);
  return { greeting: `Hello, ${params.name}!` };
});
