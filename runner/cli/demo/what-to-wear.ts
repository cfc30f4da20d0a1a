// A script is text: this is all of it. `heddle script push what-to-wear FILE` makes another version of it.
import type { Context } from "heddle:task";

export const description = "What to wear on a day in Seattle, going by the weather that it had.";

/** What people fill in: the form on the group's page, and what is checked before a run, come from this type. */
interface Params {
  /** A day from 2012 to 2015, like 2013-07-01. */
  day: string;
  /** From how many degrees Celsius on it is warm. */
  warm?: number;
}

export const defaults = { warm: 20 };

export default async function run({ day, warm = 20 }: Params, ctx: Context) {
  const [weather] = await ctx.sql("warehouse").query(
    "select temp_max, precipitation, weather from seattle_weather where date = $1::text::date",
    day,
  );
  if (weather === undefined) throw new Fatal(`nobody knows the weather of ${day}: the days are those of 2012 to 2015`);
  const wear = [weather.temp_max >= warm ? "a shirt" : "a coat"];
  if (weather.precipitation > 0) wear.push("an umbrella");
  console.info(`${day}: ${weather.weather}, ${weather.temp_max} degrees: ${wear.join(" and ")}`);
  return { day, weather: weather.weather, wear };
}
