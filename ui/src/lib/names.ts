// Names of volumes and snapshots.

const NAME_BYTES_MAX = 255;

/** Fault of a name, by the rule of the daemon; empty for a valid name. */
export function nameProblem(name: string): string {
  if (name.length > NAME_BYTES_MAX) return `The name is longer than ${NAME_BYTES_MAX} characters.`;
  return /^[\w:@+-][\w.:@+-]*$/.test(name)
    ? ''
    : `“${name}” cannot be a name. Use letters, digits and - _ . : @ +, not starting with a dot.`;
}
