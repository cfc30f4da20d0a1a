export { Fatal, Retry, Skip } from "heddle:runtime";
