// What is built: the guest, wired to hostler's functions.
import * as batch from "hostler:consumer/batch@0.1.0";
import * as app from "./batch.js";
import { component } from "./hostler.js";

export const { batchHandler } = component(app, batch);
