import { begin, bind, describe, event, refuse } from "heddle:runtime";
import "heddle:web";

try {
  bind(await import("heddle:script"));
} catch (thrown) {
  refuse(thrown);
}

export { begin, describe, event };
