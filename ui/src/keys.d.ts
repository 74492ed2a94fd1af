// What `keys.ts` makes of the documentation while the page is built.

declare module 'virtual:keys' {
  interface Key {
    name: string;
    /** How its value is written, by example. */
    form: string;
    /** What holds without it. */
    without: string;
    /** What it does, with code between backticks. */
    text: string;
  }
  /** In the order of the documentation; `[memory]`, or words where a table has no name. */
  export const TABLES: { name: string; keys: Key[] }[];
}
